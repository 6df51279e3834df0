"""Authentic acknowledgements: codes that only the node can make, and the order of the node's runs.

A broker checks topics, not keys: a client that may acknowledge for one node may write a record for any. So an
acknowledgement may carry a code (``CodedAck``), computed over its bytes with a key that only the node has. The key is
derived from a *master* and the node's id. A reader that acts on acknowledgements has the master, needs no list of
nodes, and rejects any record without the right code. A reader without a master accepts every record.

    key of a node = HMAC-SHA-256(master, "ringlog acks of " + id of the node), as hex digits
    code          = HMAC-SHA-256(key of the node, the bytes of its NodeAck)

The code covers bytes, not fields, so releases that add a field to ``NodeAck`` understand each other's codes. A report
of load has a code of the same key (``CodedLoad``); its bytes never begin like those of an acknowledgement.

An incarnation is one run of a node: the number of its start, counted durably in its folder, and an id drawn at the
start. A later start has the greater number, independent of clocks. Runs of a folder that was copied differ by their
id, which also orders them if their numbers are equal. Only the greatest incarnation seen so far counts, because the
process of another one may still serve under an epoch that this one has left. Epochs of one incarnation never go back,
so the acknowledgement with the newest epoch counts, and of equal epochs the later record. A record that is sent again
changes nothing. A name without a number comes before all others.

Invariant: a node's key alone, without a master, cannot make a valid acknowledgement of another node.
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
ACK_REJECTED: Final = "ack_not_believed"
REJECTED_ACK_REMEDY: Final = (
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


def verified_ack(data: bytes, masters: Sequence[str]) -> NodeAck:
    """The acknowledgement of a record of the topic, as far as it is its node's; without a master each one is.

    Raises WireError, with the code ``wrong_code`` and the node for one that is not.
    """
    ack = decode_node_ack(data)
    if masters and not has_code_of(data, (key_of(master, ack.node) for master in masters)):
        raise WireError(WRONG_CODE, _shown(ack.node), "an acknowledgement with a code by the key of its node")
    return ack


def verified_load(data: bytes, masters: Sequence[str]) -> NodeLoad:
    """The report of a record of the topic ``load``, as ``verified_ack`` has an acknowledgement."""
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


def _is_by(data: bytes, code: bytes, keys: Iterable[str]) -> bool:
    return any(hmac.compare_digest(code, _code(data, key)) for key in keys)


def _code(data: bytes, key: str) -> bytes:
    return hmac.digest(key.encode(), data, "sha256")


AT = "@"
Order = tuple[int, str]


def incarnation(start: int, run: str) -> str:
    """That of a node's so-manieth ``start``; ``run``: an id that no other has."""
    return f"{start}{AT}{run}"


def order_of(name: str) -> Order:
    """Incarnations ascend with it."""
    start, at, run = name.partition(AT)
    return (int(start), run) if at and start.isascii() and start.isdecimal() and len(start) < 20 else (0, "")


ReceivedAck = tuple[int, NodeAck]
"""Offset and acknowledgement."""


def place_of(received: ReceivedAck) -> tuple[int, int]:
    """Acknowledgements of one incarnation ascend with it."""
    offset, ack = received
    return ack.applied, offset


def newest_ack(kept: ReceivedAck | None, received: ReceivedAck) -> ReceivedAck:
    """Of a node's acknowledgements: that of the later incarnation; of one incarnation that of the newest epoch."""
    if kept is None:
        return received
    kept_order, received_order = order_of(kept[1].incarnation), order_of(received[1].incarnation)
    return received if (received_order, place_of(received)) >= (kept_order, place_of(kept)) else kept
