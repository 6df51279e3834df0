"""Whose an acknowledgement is, or a report of load: a code that only its node can make.

A broker's rights end at the topic, it does not see keys: who may acknowledge for one node may write a record for any.
So an acknowledgement may travel with a code (``CodedAck``), made of its very bytes by a key that the node has and no
other node. A node's key is made of a *master* and the node's id. Who acts on acknowledgements has the master, so it
needs no list of nodes, and believes nothing without the right code. Who has no master believes what is there.

    key of a node = HMAC-SHA-256(master, "ringlog acks of " + id of the node), as hex digits
    code          = HMAC-SHA-256(key of the node, the bytes of its NodeAck)

The code is made of bytes, not of fields: releases that add a field to ``NodeAck`` understand each other's codes. A
report of load has a code of the same key (``CodedLoad``): its bytes begin as those of no acknowledgement do.

Invariant: who knows one node's key, and no master, can make no acknowledgement of another node that counts.
Source: decision 101; RFC 2104.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from typing import Final

from ringlog.kernel.values import NodeId, is_uuid
from ringlog.wire.errors import WireError
from ringlog.wire.records import (
    CodedAck,
    CodedLoad,
    NodeAck,
    NodeLoad,
    ack_in,
    decode_node_ack,
    decode_node_load,
    encode_coded_ack,
    encode_coded_load,
    load_in,
)

WRONG_CODE: Final = "wrong_code"
ACK_NOT_BELIEVED: Final = "ack_not_believed"
NOT_BELIEVED_ENDS: Final = (
    "give the node its ack.key, made of a line of the agents' ack.master; if it has it, somebody else writes for it"
)
"""How that ends."""
_ACKS_OF: Final = "ringlog acks of "


def key_of(master: str, node: NodeId) -> str:
    """The key of a node."""
    return hmac.digest(master.encode(), f"{_ACKS_OF}{node}".encode(), "sha256").hex()


def coded(ack: bytes, key: str) -> bytes:
    """The record for an acknowledgement with a code; ``ack``: the bytes of a ``NodeAck``."""
    return encode_coded_ack(CodedAck(ack, _code(ack, key)))


def coded_load(load: bytes, key: str) -> bytes:
    """The record for a report of load with a code; ``load``: the bytes of a ``NodeLoad``."""
    return encode_coded_load(CodedLoad(load, _code(load, key)))


def has_code_of(data: bytes, keys: Iterable[str]) -> bool:
    """True if a record of the topic of acknowledgements has a code by one of these keys. Raises WireError."""
    found = ack_in(data)
    return _is_by(found.ack, found.code, keys)


def believed_ack(data: bytes, masters: Sequence[str]) -> NodeAck:
    """The acknowledgement of a record of the topic, as far as it is its node's; without a master each one is.

    Raises WireError, with the code ``wrong_code`` and the node for one that is not.
    """
    ack = decode_node_ack(data)
    if masters and not has_code_of(data, (key_of(master, ack.node) for master in masters)):
        raise WireError(WRONG_CODE, _shown(ack.node), "an acknowledgement with a code by the key of its node")
    return ack


def believed_load(data: bytes, masters: Sequence[str]) -> NodeLoad:
    """The report of a record of the topic ``load``, as ``believed_ack`` has an acknowledgement."""
    load, found = decode_node_load(data), load_in(data)
    if masters and not _is_by(found.load, found.code, (key_of(master, load.node) for master in masters)):
        raise WireError(WRONG_CODE, _shown(load.node), "a report of load with a code by the key of its node")
    return load


def digest_of_key(key: str) -> str:
    """What may stand on a disk for a key: it says whether it is the same one, and makes no code."""
    return hmac.digest(key.encode(), b"which key of acknowledgements this is", "sha256").hex()


def _shown(node: str) -> str:
    """A node as a log may have it: strangers choose it."""
    return node if is_uuid(node) else ascii(node[:36])


def _is_by(said: bytes, code: bytes, keys: Iterable[str]) -> bool:
    return any(hmac.compare_digest(code, _code(said, key)) for key in keys)


def _code(said: bytes, key: str) -> bytes:
    return hmac.digest(key.encode(), said, "sha256")
