"""Authenticated requests: a MAC that only the principal can make, and the record that carries it.

A broker checks topics, not commands: a client that may write the topic ``requests`` could send any command in any name.
So a request may have a MAC (``CodedRequest``) over its bytes, with a key that only its principal has. The key is
derived from a *master*, so the validator has the master and needs no list of keys.

    key of a principal = HMAC-SHA-256(master, "ringlog requests of CLUSTER/NAME/NUMBER"), as hex digits
    MAC                = HMAC-SHA-256(key, id of the cluster as text, the bytes of the request)

The bytes begin with the id of the request. ``NUMBER`` is that of the principal's key in the state: a command raises it,
and requests with an earlier key are refused. A repeated request has the same id, so it has no second effect.

Invariants: a principal's key alone, without a master, cannot make a valid request of another principal, cluster or key
number. A ``SignedRequest`` counts as not verified until ``verified`` returns it.

Source: decision 187; RFC 2104.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

from ringlog.kernel.model.principals import AGENT_NAMES, FIRST_KEY
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import HidingValue, is_name
from ringlog.wire.avro.codec import name_of
from ringlog.wire.errors import WireError
from ringlog.wire.records import (
    CODED_REQUEST,
    REQUEST,
    REQUEST_BATCH,
    CodedRequest,
    CommandRequest,
    RequestBatch,
    decode_batch,
    decode_coded_request,
    decode_plain_request,
    encode_batch,
    encode_coded_request,
)
from ringlog.wire.senders import bounded

TOGETHER_MAX = 500
"""Maximum number of requests in one record."""
_NO_CODE: Final = CodedRequest(b"", "", 0, b"")
_NO_VALID_CODE: Final = "it has no valid code of this cluster and key; after a new master, write the key file again"
_NO_MASTER: Final = "the validator has no request.master; set it in the --trust-config file of the agents"
_REQUESTS_OF: Final = "ringlog requests of "
_LINE: Final = re.compile(r"([^/]+)/([0-9]{1,18})/([0-9a-f]{64})")


class SignedRequest(CommandRequest):
    """A request that came as a ``CodedRequest``. ``unverified``: why its MAC does not count; empty: it is valid."""

    coded: CodedRequest = _NO_CODE
    unverified: str = "the code was not checked"


_plain: Final[Callable[[CommandRequest], Sequence[Any]]] = attrgetter(*CommandRequest.__struct_fields__)
"""The fields of a request without its code."""
_new_signed: Final[Callable[..., SignedRequest]] = SignedRequest


class PrincipalKey(HidingValue):
    """A key of a principal, and its number."""

    HIDDEN = ("key",)

    name: str
    number: int
    key: str

    def __str__(self) -> str:
        """Return the line of a key file: ``NAME/NUMBER/KEY``."""
        return f"{self.name}/{self.number}/{self.key}"


def principal_key(text: str) -> PrincipalKey | None:
    """Return the key in a line of a key file, or None for another text."""
    found = _LINE.fullmatch(text)
    return None if found is None or not is_name(found[1]) else PrincipalKey(found[1], int(found[2]), found[3])


@lru_cache(maxsize=1_024)
def key_of_principal(master: str, cluster_id: str, name: str, number: int) -> PrincipalKey:
    """Return the key of a principal with this number."""
    text = f"{_REQUESTS_OF}{cluster_id}/{name}/{number}"
    return PrincipalKey(name, number, hmac.digest(master.encode(), text.encode(), "sha256").hex())


def chosen_key(state: ClusterState, keys: Sequence[PrincipalKey]) -> PrincipalKey | None:
    """Return the key that is valid in this state, else the first one; None without keys.

    A key file may contain the next key already, so that a rotation interrupts no client.
    """
    present = (key for key in keys if (known := state.principals.get(key.name)) and known.key == key.number)
    return next(present, keys[0] if keys else None)


def agent_keys(masters: Sequence[str], cluster_id: str, role: str) -> tuple[PrincipalKey, ...]:
    """Return the keys of an agent that has the masters."""
    return tuple(key_of_principal(master, cluster_id, role, FIRST_KEY) for master in masters)


def with_code(request: bytes, key: PrincipalKey, cluster_id: str) -> bytes:
    """Return the record of a request with a MAC. ``request`` contains the bytes of a ``Request``."""
    return encode_coded_request(CodedRequest(request, key.name, key.number, _mac(request, key, cluster_id)))


def verified(request: CommandRequest, cluster_id: str, masters: Sequence[str]) -> CommandRequest:
    """Return a request with the result of the check of its MAC. If it is valid, the submitter has the name of the
    principal, or of an instance of an agent.
    """
    if not isinstance(request, SignedRequest):
        return request
    coded = request.coded
    usable = masters if is_name(coded.principal) else ()
    keys = (key_of_principal(master, cluster_id, coded.principal, coded.key) for master in usable)
    if any(hmac.compare_digest(coded.code, _mac(coded.request, key, cluster_id)) for key in keys):
        is_instance = coded.principal in AGENT_NAMES and request.submitter.startswith(f"{coded.principal}-")
        request_id, since_epoch, submitter, *others = _plain(request)
        sender = bounded(submitter, "" if is_instance else coded.principal)
        return _new_signed(request_id, since_epoch, sender, *others, coded, "")
    why = _NO_VALID_CODE if masters else _NO_MASTER
    return _new_signed(*_plain(request), coded, why)


def decode_request(data: bytes) -> CommandRequest:
    """Decode a request with or without a MAC. ``verified`` checks the MAC."""
    if name_of(data, (REQUEST, CODED_REQUEST)) != CODED_REQUEST:
        return decode_plain_request(data)
    coded: CodedRequest = decode_coded_request(data)
    request = decode_plain_request(coded.request)
    return _new_signed(*_plain(request), coded)


def encode_request_batch(requests: Sequence[bytes]) -> bytes:
    """Encode several encoded requests as one record."""
    return encode_batch(RequestBatch(tuple(requests)))


def decode_requests(data: bytes) -> tuple[CommandRequest | None, ...]:
    """Return the requests of a record of the topic ``requests``. None for a part that is not a request.

    Raises WireError for another record, or for more than ``TOGETHER_MAX`` requests.
    """
    full_name = name_of(data, (REQUEST, CODED_REQUEST, REQUEST_BATCH))
    if full_name in (REQUEST, CODED_REQUEST):
        return (decode_request(data),)
    if full_name != REQUEST_BATCH:
        raise WireError("wrong_record", full_name, f"must be a {REQUEST}, a {CODED_REQUEST} or a {REQUEST_BATCH}")
    parts = decode_batch(data).requests
    if len(parts) > TOGETHER_MAX:
        raise WireError("too_many_requests", str(len(parts)), f"must have at most {TOGETHER_MAX} requests")
    return tuple(_request_or_none(part) for part in parts)


def _request_or_none(data: bytes) -> CommandRequest | None:
    try:
        return decode_request(data)
    except WireError:
        return None


def _mac(request: bytes, key: PrincipalKey, cluster_id: str) -> bytes:
    return hmac.digest(key.key.encode(), cluster_id.encode() + request, "sha256")
