"""Fuzz targets for the wire formats: entries, commands, topic records, values, keys and ids."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import Any

from fastavro import parse_schema

from ringlog.cli.metadata import log as cli_log
from ringlog.cli.shared.connection import out
from ringlog.client.data.row_merge import merged
from ringlog.kernel.changes import diff
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.cql.types import TYPES, TypeMismatch, deserialize, serialize
from ringlog.kernel.encoding.decoder import (
    StateUndecodable,
    decode_forced,
    decode_part,
    decode_parts,
    decode_record,
    decode_state,
)
from ringlog.kernel.encoding.encoder import digest, encoded_parts
from ringlog.kernel.encoding.encoder import encode as encode_state
from ringlog.kernel.fold import DEFECT, fold
from ringlog.kernel.generations.admission import refused, rules_of
from ringlog.kernel.model.outcome import Entry, OutcomeKind, Undecodable, UnknownCommand
from ringlog.kernel.model.stream_id import StreamIdError
from ringlog.kernel.model.stream_id import decode as decode_stream_id
from ringlog.kernel.model.stream_id import encode as encode_stream_id
from ringlog.kernel.plans import PLANNABLE
from ringlog.kernel.registry import CODES, COMMANDS, VERSIONS
from ringlog.kernel.ring.murmur3 import compose, token_of
from ringlog.kernel.values import replace
from ringlog.log.folding import FoldedRecord
from ringlog.node.rows.partial_decode import plain
from ringlog.operator.history.log_lines import line_json
from ringlog.protocol.submission.results import CommitOutcome
from ringlog.protocol.validator.core import add_requests, begin_batch, settle_batch
from ringlog.protocol.validator.values import CommitChain, NoteApplied, Publish, Validator
from ringlog.runtime.draw import SeededDraw
from ringlog.wire import records, requests
from ringlog.wire.avro.codec import decode, encode
from ringlog.wire.changes import decode_change, encode_change
from ringlog.wire.commands import decode_command, encode_command
from ringlog.wire.entries import decode_entry
from ringlog.wire.errors import WireError
from ringlog_audit.sources.heads import MUTATION_TAILS, RecordHead, components_at
from ringlog_schemas import by_fingerprint, current
from tests.fuzz.mutate import of_record
from tests.fuzz.targets import Target
from tests.fuzz.world import START, story
from tests.node.world import partial_key
from tests.wire.strategies import named_types, sample

NOW = START + 10**8

# Log


def log_entry(data: bytes) -> None:
    """Apply an entry to up to three states of the story, compute the changes and the digest, and show it as ``ringlog
    log`` does.
    """
    item = decode_entry(data)
    for state in _befores(item.prev_state_id if isinstance(item, Entry) else None):
        folded = fold(state, item)
        assert folded.outcome.code in {"", *CODES} - {DEFECT}, folded.outcome
        if folded.outcome.kind is OutcomeKind.APPLIED:
            assert folded.state.epoch == state.epoch + 1
            digest(folded.state)
            for record in diff(state, folded.state):
                if record.value is not None:
                    assert decode_change(encode_change(record.value)) == record.value
        else:
            assert folded.state is state
        line = FoldedRecord(7, item, folded.outcome, state, folded.state)
        json.dumps(line_json(line))
        _shown(line)
    if isinstance(item, Entry) and not isinstance(item.command, Undecodable | UnknownCommand):
        kind, version, payload = encode_command(item.command)
        assert decode_command(kind, version, payload) == item.command


def _befores(prev: str | None) -> tuple[Any, ...]:
    """Return the state that an entry follows, if the story contains it, and the first and last states."""
    found = [step.before for step in story().steps if step.encoded.entry.prev_state_id == prev]
    return (*found[:1], story().steps[0].before, story().state)


def _shown(line: FoldedRecord) -> None:
    with out.capture():
        cli_log._print(line, is_short=True)
        cli_log._print(line, is_short=False)


def _entries() -> tuple[bytes, ...]:
    return tuple(step.encoded.data for step in story().steps)


# Topics


def request(data: bytes) -> None:
    """Validate requests, apply their entries and encode their results."""
    found = tuple(one for one in requests.decode_requests(data) if one is not None)
    unsigned = tuple(one for one in found if not isinstance(one, requests.SignedRequest))
    for one in unsigned:
        assert requests.decode_request(records.encode_request(one)) == one
    encoded = list(map(records.encode_request, unsigned))
    assert requests.decode_requests(requests.encode_request_batch(encoded)) == unsigned
    validator = add_requests(Validator("fuzz", 9), [(0, (*found, *found)), (1, found)]).validator
    step = begin_batch(validator, story().state, NOW, SeededDraw(b"request"))
    while True:
        chains = [effect.chain for effect in step.effects if isinstance(effect, CommitChain)]
        for effect in step.effects:
            if isinstance(effect, Publish | NoteApplied):
                for result in effect.results:
                    assert result.code in {"", *CODES} - {DEFECT}, result
                    assert records.decode_result(records.encode_result(result)) == result
        if not chains:
            return
        for encoded in chains[0].entries:
            assert decode_entry(encoded.data) == encoded.entry
        step = settle_batch(step.validator, [CommitOutcome.APPLIED] * len(chains[0].entries))


def _requests() -> tuple[bytes, ...]:
    def made(entry: Entry) -> bytes:
        assert not isinstance(entry.command, Undecodable | UnknownCommand)
        kind, version, payload = encode_command(entry.command)
        fresh = f"ffffffff-{entry.request_id[9:]}"
        epoch = story().state.epoch
        return records.encode_request(records.CommandRequest(fresh, epoch, "fuzz", kind, version, payload))

    alone = tuple(made(step.encoded.entry) for step in story().steps)
    key = requests.key_of_principal("master", story().state.cluster_id, "root", 1)
    signed = requests.with_code(alone[0], key, story().state.cluster_id)
    return (*alone, requests.encode_request_batch(alone[:3]), signed, requests.encode_request_batch((signed, alone[1])))


def mutation(data: bytes) -> None:
    """Decode a mutation. The partial decoders of nodes and the audit must agree with the full decoder."""
    try:
        found = records.decode_mutation(data)
    except WireError:
        partial_key(data)
        _head(data)
        assert plain(data) is None, "the partial decoder accepts bytes that are not a mutation"
        raise
    bare = replace(found, mutation_id=None)
    assert plain(data) in (None, bare), "the plain write differs from the mutation"
    for head in (partial_key(data), _head(data)):
        if head is not None:
            assert head == (f"{found.keyspace}.{found.table}", found.partition_key), (
                "the partial key differs from the mutation"
            )
    rules = rules_of(story().state)
    if not refused(rules, found, NOW)[0]:
        token_of(compose([part for part in found.partition_key if part is not None]))
        merged([found, found], rules.tables[f"{found.keyspace}.{found.table}"], NOW)


@cache
def _mutation_head() -> RecordHead:
    parsed: Any = parse_schema(dict(current()[records.MUTATION].json), _write_hint=False)
    return RecordHead(parsed, MUTATION_TAILS, ("keyspace", "table", "partition_key"))


def _head(data: bytes) -> tuple[str, tuple[bytes | None, ...]] | None:
    try:
        (keyspace, table, key), tail = _mutation_head().read(data, 10)
        components_at(data, tail)
    except (IndexError, ValueError):
        return None
    return f"{keyspace}.{table}", tuple(key)


def _round_trip(decoded: Callable[[bytes], Any], encoded: Callable[[Any], bytes], data: bytes) -> None:
    """Encode the decoded value and decode it again to the same value."""
    found = decoded(data)
    assert decoded(encoded(found)) == found


def catalogue(data: bytes) -> None:
    """Decode a record of any schema that this release reads."""
    name, record = decode(data)
    again = encode(name, record)
    assert decode(again, name) == (name, record)


def _samples(*names: str) -> tuple[bytes, ...]:
    """Return two sample records of each schema."""
    return tuple(
        encode(name, sample(current()[name].json, named_types(current()[name].json), seed))
        for name in names
        for seed in (1, 2)
    )


def _mutations() -> tuple[bytes, ...]:
    def write(operation: str, key: tuple[bytes, ...], clustering: tuple[bytes, ...], ttl: int | None) -> bytes:
        cells = (records.Cell("v", b"\0" * 8), records.Cell("w", None))
        return records.encode_mutation(
            records.Mutation(None, None, "ks", "t", NOW, ttl, operation, key, clustering, cells)
        )

    return (
        *_samples(records.MUTATION),
        write("INSERT", (b"k",), (b"\0\0\0\1",), None),
        write("UPDATE", (b"k", b""), (b"\0\0\0\1",), 5),
        write("PARTITION_DELETE", (b"k",), (), None),
    )


_OTHERS = ("result", "node_ack", "node_load", "agent_status", "cdc_row", "dead_letter")
"""Records that need no test beyond their decoder."""


def _plain_record(name: str) -> Target:
    full_name = getattr(records, name.upper())
    decoded, encoded = getattr(records, f"decode_{name}"), getattr(records, f"encode_{name}")
    return Target(
        f"{name}s".replace("statuss", "statuses"),
        (f"wire.records.decode_{name}",),
        partial(_round_trip, decoded, encoded),
        (WireError,),
        partial(_samples, full_name),
        of_record,
    )


# Values and ids


def command(data: bytes) -> None:
    """Decode a command from a kind number, a version and a payload."""
    kinds = sorted(name for name in current() if name.startswith("ringlog.commands."))
    (place, version), payload = data[:2].ljust(2, b"\0"), data[2:]
    kind = kinds[place % len(kinds)].rpartition(".")[2]
    found = decode_command(kind, version, payload)
    if not isinstance(found, Undecodable | UnknownCommand):
        again = encode_command(found)
        # A command of an earlier release is encoded in the current version.
        assert again == (kind, version, payload) if version == VERSIONS[kind] else decode_command(*again) == found


def _commands() -> tuple[bytes, ...]:
    kinds = sorted(name for name in current() if name.startswith("ringlog.commands."))
    return tuple(
        bytes((place, VERSIONS[name.rpartition(".")[2]])) + _samples(name)[0][10:] for place, name in enumerate(kinds)
    )


def cluster_state(data: bytes) -> None:
    """Decode a state and encode it to the same bytes."""
    assert encode_state(decode_state(data)) == data


def planned_command(data: bytes) -> None:
    """Decode a command of a plan, given as kind, line feed and bytes, and encode it to the same bytes."""
    kind, _, command = data.partition(b"\n")
    assert encode_state(decode_record(COMMANDS.get(kind.decode(errors="replace"), Noop), command)) == command


def _planned() -> tuple[bytes, ...]:
    commands = (step.encoded.entry.command for step in story().steps)
    found = {type(one).__name__: encode_state(one) for one in commands if type(one).__name__ in PLANNABLE}
    return tuple(kind.encode() + b"\n" + data for kind, data in sorted(found.items()))


def state_parts(data: bytes) -> None:
    """Decode a state section, given as name, line feed and bytes, within the last state. It must encode to the same
    bytes.
    """
    name, _, part = data.partition(b"\n")
    known = name.decode(errors="replace")
    with suppress(StateUndecodable):
        assert decode_forced(known, part) == decode_part(known, part)
    parts = {**encoded_parts(story().state), known: part}
    found = decode_parts(parts)
    assert encoded_parts(found) == parts
    assert decode_part(known, part) == getattr(found, known), (
        "a section decodes to a different value without the other sections"
    )


def _parts() -> tuple[bytes, ...]:
    return tuple(name.encode() + b"\n" + part for name, part in sorted(encoded_parts(story().state).items()))


def _states() -> tuple[bytes, ...]:
    return tuple(encode_state(step.before) for step in (*story().steps[:12], *story().steps[20::30]))


def cql_value(data: bytes) -> None:
    """Decode a CQL value. The first byte selects the type."""
    name = sorted(TYPES)[data[0] % len(TYPES)] if data else ""
    found = deserialize(name, data[1:])
    if isinstance(found, float):
        assert deserialize(name, serialize(name, found)) == found or found != found
    else:
        assert serialize(name, found) == data[1:]


def _cql_values() -> tuple[bytes, ...]:
    names = sorted(TYPES)
    some = (b"", b"\0", b"\xff" * 4, b"\x7f" * 8, "é".encode(), bytes(6) + b"\x10" + bytes(9))
    return tuple(bytes((place,)) + value for place in range(len(names)) for value in some)


def partition_key(data: bytes) -> None:
    """Compose a partition key of components separated by bytes ff."""
    composed = compose(data.split(b"\xff")) if data else compose([])
    assert -(2**63) <= token_of(composed) < 2**63


def stream_id(data: bytes) -> None:
    """Decode a stream id. One of the current version must encode to the same bytes."""
    found = decode_stream_id(data)
    if found.version == 1:
        assert encode_stream_id(found) == data


def _streams() -> tuple[bytes, ...]:
    found = story().state.generations[-1].ranges[0].streams
    return (*found, bytes(16), bytes(15) + b"\xff")


def _schema_headers() -> tuple[bytes, ...]:
    """Return the fingerprint of each schema, including frozen schemas, with an empty body."""
    return tuple(b"\xc3\x01" + number.to_bytes(8, "little") for number in sorted(by_fingerprint()))


TARGETS = (
    Target("log_entries", ("wire.entries.decode_entry",), log_entry, (), _entries, of_record),
    Target("commands", ("wire.commands.decode_command",), command, (), _commands),
    Target(
        "requests",
        (
            "wire.requests.decode_request",
            "wire.requests.decode_requests",
            "wire.records.decode_batch",
            "wire.records.decode_coded_request",
            "wire.records.decode_plain_request",
            "wire.avro.mapping.Mapper.decode",
        ),
        request,
        (WireError,),
        _requests,
        of_record,
    ),
    Target("mutations", ("wire.records.decode_mutation",), mutation, (WireError,), _mutations, of_record),
    *(_plain_record(name) for name in _OTHERS),
    Target(
        "changes",
        ("wire.changes.decode_change",),
        partial(_round_trip, decode_change, encode_change),
        (WireError,),
        lambda: _samples(*(name for name in current() if name.startswith("ringlog.changes."))),
        of_record,
    ),
    Target(
        "catalogue",
        ("wire.avro.codec.decode", "wire.avro.binary.RecordCodec.decode"),
        catalogue,
        (WireError,),
        lambda: (*_samples(*current()), *_schema_headers()),
        of_record,
    ),
    Target("states", ("kernel.encoding.decoder.decode_state",), cluster_state, (StateUndecodable,), _states),
    Target(
        "planned_commands", ("kernel.encoding.decoder.decode_record",), planned_command, (StateUndecodable,), _planned
    ),
    Target(
        "state_parts",
        tuple(f"kernel.encoding.decoder.{name}" for name in ("decode_part", "decode_parts", "decode_forced")),
        state_parts,
        (StateUndecodable,),
        _parts,
    ),
    Target(
        "snapshots",
        ("wire.records.decode_snapshot_record",),
        partial(_round_trip, records.decode_snapshot_record, records.encode_snapshot_record),
        (WireError,),
        lambda: _samples(records.STORED_SNAPSHOT, records.SNAPSHOT_CHUNK, records.SNAPSHOT_CONFIRMATION),
        of_record,
    ),
    Target("cql_values", ("kernel.cql.types.deserialize",), cql_value, (TypeMismatch,), _cql_values),
    Target("partition_keys", (), partition_key, (ValueError,), lambda: (b"", b"a", b"a\xffb", b"\xff\xff")),
    Target("stream_ids", ("kernel.model.stream_id.decode",), stream_id, (StreamIdError,), _streams),
)
