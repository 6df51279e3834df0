"""The cache in Redis: one hash per part and one for metadata, with the cluster's hash tag.

Keys: ``{cluster}:meta`` (cluster_id, epoch, state_id, digest, offset, confirmed_at, counts) and ``{cluster}:<part>``
for each part.

Invariant: readers only see complete epochs. Each write is one Lua script, which Redis runs without interruption and
replays after a restart as one transaction. Each read is one MULTI/EXEC.

A large write is first stored in pieces, with one response per piece, in separate hashes
(``{cluster}:staged:<write>:<part>``) that no reader uses. Then one script moves them into place. A full projection is
renamed, which costs the same at any size, so no size makes a write exceed the timeout repeatedly. If a large delta
exceeds the timeout, a full projection follows. Redis deletes the pieces of an abandoned write after ``STAGED_S``. Until
the script runs, Redis stores the data twice.

Redis may lose single keys (eviction, DEL). ``counts`` contains the number of fields of each part, in the order of
``PARTS``. Writers and readers compare it. An incomplete projection is not read, and the cache writer writes it again.
The same applies to a projection of another release, which has other parts; its readers are upgraded together with it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, cast

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

from ringlog.cache.port import (
    CLOCK_SKEW_MAX_US,
    FOREIGN_ACTIVE_US,
    TIMEOUT_S,
    CacheUnavailable,
    Confirmation,
    StoredEpoch,
    WriteOutcome,
)
from ringlog.cache.projection import PARTS, CacheDelta, FullProjection, Stamp
from ringlog.cache.redis_url import RedisAddress, redis_address

COMMAND_ROWS_MAX = 10_000
COMMAND_BYTES_MAX = 4 * 1024 * 1024
"""Maximum rows and bytes of one command. Larger writes are split into pieces."""

STAGED_S = 600
"""Seconds until Redis deletes the pieces of an abandoned write, from its last piece on."""

T = TypeVar("T")

_Row = tuple[int, str, str]
"""Number of the part from 1 on, field, JSON. Part 0 contains the fields to remove, named ``number/field``."""

# KEYS: meta, the parts. If the rows were staged: also the hash of the fields to remove and one hash per part.
# ARGV 1-11: full?, base (cluster, epoch, state id; for a full projection: the later epoch that it replaces), cluster
# id, epoch, state id, digest, offset, confirmed_at, number of parts.
# ARGV 12 and later, if the rows were staged: their numbers, for removal and for each part. Otherwise: number of puts,
# (part number, field, value) of each put, (part number, field) of each removal.
# Keys that contain no hashes count as lost. A delta writes the empty ``counts`` before any other change: a Redis
# without free memory rejects that command, and has then changed nothing.
_APPLY = (
    f"local foreign_us, ahead_us = {FOREIGN_ACTIVE_US}, {CLOCK_SKEW_MAX_US}"
    + """
local parts = tonumber(ARGV[11])
local is_staged = #KEYS > 1 + parts
local meta = redis.pcall('HMGET', KEYS[1], 'cluster_id', 'epoch', 'state_id', 'confirmed_at', 'counts')
if meta.err then meta = {} end
local function counts()
  local found = {}
  for index = 1, parts do found[index] = tostring(redis.pcall('HLEN', KEYS[1 + index])) end
  return table.concat(found, ' ')
end
local whole, epoch, confirmed_at = ARGV[1] == '1', tonumber(ARGV[6]), ARGV[10]
local same = meta[1] == ARGV[5]
local based = meta[1] == ARGV[2] and meta[2] == ARGV[3] and meta[3] == ARGV[4]
local stored = meta[3] and string.match(meta[2] or '', '^[1-9]%d*$') and tonumber(meta[2]) or -1
if same and stored > epoch and not (whole and based) then return 'later_stored' end
local known = same and meta[2] == ARGV[6] and meta[3] == ARGV[7]
local before, now = tonumber(meta[4]) or 0, tonumber(confirmed_at)
if known and now < before and before < now + ahead_us then confirmed_at = meta[4] end
if not whole then
  if not (known or based) or meta[5] ~= counts() then return 'base_missing' end
  if known then
    redis.call('HSET', KEYS[1], 'digest', ARGV[8], 'offset', ARGV[9], 'confirmed_at', confirmed_at)
    return 'applied'
  end
end
if whole and meta[1] and not same and math.abs(tonumber(confirmed_at) - (tonumber(meta[4]) or 0)) < foreign_us then
  return 'foreign'
end
if is_staged then
  for index = 0, parts do
    if redis.call('HLEN', KEYS[2 + parts + index]) ~= tonumber(ARGV[12 + index]) then return 'staged_lost' end
  end
end
if not whole then
  redis.call('HSET', KEYS[1], 'counts', '')
else
  for index = 1, 1 + parts do redis.call('UNLINK', KEYS[index]) end
end
if is_staged then
  for index = 1, parts do
    local live, staged = KEYS[1 + index], KEYS[2 + parts + index]
    if whole then
      if tonumber(ARGV[12 + index]) > 0 then
        redis.call('RENAME', staged, live)
        redis.call('PERSIST', live)
      end
    else
      local rows = redis.call('HGETALL', staged)
      for at = 1, #rows, 2 do redis.call('HSET', live, rows[at], rows[at + 1]) end
    end
  end
  for _, row in ipairs(redis.call('HKEYS', KEYS[2 + parts])) do
    local number, field = string.match(row, '^(%d+)/(.*)$')
    redis.call('HDEL', KEYS[1 + tonumber(number)], field)
  end
else
  local puts, at = tonumber(ARGV[12]), 13
  for _ = 1, puts do
    redis.call('HSET', KEYS[1 + tonumber(ARGV[at])], ARGV[at + 1], ARGV[at + 2])
    at = at + 3
  end
  while ARGV[at] do
    redis.call('HDEL', KEYS[1 + tonumber(ARGV[at])], ARGV[at + 1])
    at = at + 2
  end
end
redis.call('HSET', KEYS[1], 'cluster_id', ARGV[5], 'epoch', ARGV[6], 'state_id', ARGV[7],
  'digest', ARGV[8], 'offset', ARGV[9], 'confirmed_at', confirmed_at, 'counts', counts())
return 'applied'
"""
)

# KEYS: meta, the parts. ARGV: cluster id. Returns how many keys it deleted; 0 if they are another cluster's.
_DELETE = """
local meta = redis.pcall('HGET', KEYS[1], 'cluster_id')
if type(meta) == 'string' and meta ~= ARGV[1] then return 0 end
return redis.call('UNLINK', unpack(KEYS))
"""


class RedisCache:
    """The projection of one cluster in the Redis at ``url`` (``ringlog.cache.redis_url``). Raises BadRedisUrl.

    ``timeout_s`` limits connecting and every response, also those of Sentinels.
    """

    def __init__(self, url: str, cluster: str, timeout_s: float = TIMEOUT_S) -> None:
        self._redis, self._sentinel = _client_of(redis_address(url), timeout_s)
        self._staged = f"{{{cluster}}}:staged"
        self._meta = f"{{{cluster}}}:meta"
        self._parts = [f"{{{cluster}}}:{part}" for part in PARTS]
        self._script = self._redis.register_script(_APPLY)

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()
        if self._sentinel is not None:
            self._sentinel.close()

    def apply(self, write: CacheDelta | FullProjection, confirmation: Confirmation) -> WriteOutcome:
        """Write a delta or a full projection; see ``CacheStore``."""
        base = write.base if isinstance(write, CacheDelta) else write.replaces or Stamp("", -1, "")
        number = {part: index for index, part in enumerate(PARTS, start=1)}
        put = [(number[part], key, value) for part, key, value in write.put]
        remove = [(number[part], key) for part, key in write.remove] if isinstance(write, CacheDelta) else []
        arguments: list[str | int] = [
            "0" if isinstance(write, CacheDelta) else "1",
            *(base.cluster_id, base.epoch, base.state_id),
            *(write.stamp.cluster_id, write.stamp.epoch, write.stamp.state_id),
            *(confirmation.digest, confirmation.offset, confirmation.confirmed_at),
            len(PARTS),
        ]
        keys = [self._meta, *self._parts]
        rows: list[_Row] = [*put, *((0, f"{part}/{key}", "") for part, key in remove)]
        if len(next(_chunks(rows), ())) == len(rows):
            inline = [item for row in (*put, *remove) for item in row]
            answer = self._ask(lambda: self._script(keys=keys, args=[*arguments, len(put), *inline]))
        else:
            answer = self._apply_in_chunks(keys, arguments, rows)
        return WriteOutcome(answer)

    def _apply_in_chunks(self, keys: list[str], arguments: list[str | int], rows: Sequence[_Row]) -> str:
        """Stage the rows in separate hashes, then move them into place. The hashes are deleted in any case."""
        token = uuid.uuid4().hex
        staged = [f"{self._staged}:{token}:{part}" for part in ("removed", *PARTS)]
        counted = [sum(number == index for number, _, _ in rows) for index in range(len(staged))]
        try:
            for chunk in _chunks(rows):
                self._ask(partial(self._stage, staged, chunk))
            answer = self._ask(lambda: self._script(keys=[*keys, *staged], args=[*arguments, *counted]))
        finally:
            with suppress(CacheUnavailable):
                self._ask(lambda: self._redis.unlink(*staged))
        if answer == "staged_lost":
            raise CacheUnavailable("Redis has lost keys of the last write; check that its memory is not full")
        return str(answer)

    def _stage(self, staged: Sequence[str], chunk: Sequence[_Row]) -> None:
        """Stage one piece, and extend the lifetime of the earlier pieces."""
        tables: dict[str, dict[str, str]] = {}
        for number, field, value in chunk:
            tables.setdefault(staged[number], {})[field] = value
        with self._redis.pipeline(transaction=False) as pipeline:
            for key, table in tables.items():
                pipeline.hset(key, mapping=cast("dict[Any, Any]", table))
            for key in staged:
                pipeline.expire(key, STAGED_S)
            pipeline.execute()

    def delete(self, cluster_id: str) -> int:
        """Delete the keys of this cluster; return how many. Keys of another cluster of the name stay."""
        script = self._redis.register_script(_DELETE)
        return int(self._ask(lambda: script(keys=[self._meta, *self._parts], args=[cluster_id])))

    def read(self) -> StoredEpoch | None:
        """Return the stored epoch, read in one transaction, or None if the cache is empty.

        Raises CacheUnavailable, also if a part is lost.
        """

        def ask() -> list[dict[str, str]]:
            with self._redis.pipeline(transaction=True) as pipeline:
                for key in (self._meta, *self._parts):
                    pipeline.hgetall(key)
                return cast("list[dict[str, str]]", pipeline.execute())

        meta, *parts = self._ask(ask)
        return decode_stored(meta, parts)

    def confirmed(self) -> tuple[Stamp, Confirmation] | None:
        """Return the stamp and last confirmation of the stored epoch, or None if the cache is empty."""
        meta = self._ask(lambda: cast("dict[str, Any]", self._redis.hgetall(self._meta)))
        return (_stamp(meta), _confirmation(meta)) if "state_id" in meta else None

    def _ask(self, question: Callable[[], T]) -> T:
        try:
            return question()
        except MasterNotFoundError as error:  # the error's text contains the connection arguments of the Sentinels
            raise CacheUnavailable("no Sentinel knows a Redis primary") from error
        except redis.RedisError as error:
            raise CacheUnavailable(f"Redis does not answer: {error}") from error
        except UnicodeDecodeError as error:
            raise CacheUnavailable(f"a value in Redis is not UTF-8 text: {error}") from error


def _client_of(address: RedisAddress, timeout_s: float) -> tuple[redis.Redis, Sentinel | None]:
    """Return a client and, if configured, its Sentinels. Nothing connects yet."""
    common: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
    }
    options = {**common, "decode_responses": True, **address.options}
    if address.path:
        return redis.Redis(unix_socket_path=address.path, **options), None
    if not address.service:
        ((host, port),) = address.hosts
        return redis.Redis(host, port, ssl=address.encrypted, **options), None
    asking = {**common, "ssl": address.encrypted, **address.sentinel_options}
    sentinel: Any = cast("Any", Sentinel)(address.hosts, sentinel_kwargs=asking)
    return sentinel.master_for(address.service, ssl=address.encrypted, **options), sentinel


def _chunks(rows: Sequence[_Row]) -> Iterator[Sequence[_Row]]:
    """Split rows into pieces within the limits of one command. A single row is never split."""
    begin = size = 0
    for index, (_, field, value) in enumerate(rows):
        more = len(field) + len(value)
        if index > begin and (index - begin >= COMMAND_ROWS_MAX or size + more > COMMAND_BYTES_MAX):
            yield rows[begin:index]
            begin, size = index, 0
        size += more
    if begin < len(rows):
        yield rows[begin:]


def decode_stored(meta: Mapping[str, str], parts: Sequence[dict[str, str]]) -> StoredEpoch | None:
    """Decode the hashes, with ``parts`` in the order of ``PARTS``. None if the cache is empty.

    Raises:
        CacheUnavailable: A part is lost, another release wrote the projection, or the metadata is invalid.
    """
    if "state_id" not in meta:
        return None
    stamp = _stamp(meta)
    counts = meta.get("counts", "")
    if counts != " ".join(str(len(part)) for part in parts):
        there = len(counts.split())
        if there not in (0, len(parts)):
            text = f"epoch {stamp.epoch} in Redis has {there} sections, this release reads {len(parts)}"
            raise CacheUnavailable(
                f"{text}: another release's cache writer wrote it. Start the cache writer of this release"
            )
        raise CacheUnavailable(f"Redis has lost a section of epoch {stamp.epoch}; the cache writer writes it again")
    return StoredEpoch(stamp, _confirmation(meta), dict(zip(PARTS, parts, strict=True)))


def _stamp(meta: Mapping[str, str]) -> Stamp:
    try:
        return Stamp(meta["cluster_id"], int(meta["epoch"]), meta["state_id"])
    except (KeyError, ValueError) as error:
        raise _foreign_cache_error(error) from error


def _confirmation(meta: Mapping[str, str]) -> Confirmation:
    try:
        return Confirmation(meta["digest"], int(meta["offset"]), int(meta["confirmed_at"]))
    except (KeyError, ValueError) as error:
        raise _foreign_cache_error(error) from error


def _foreign_cache_error(error: Exception) -> CacheUnavailable:
    return CacheUnavailable(f"the metadata in Redis is not from a cache writer: {type(error).__name__}: {error}")
