"""Authenticated acknowledgements: MACs that only the node can make, and the order of a node's incarnations.

A broker checks topics, not keys: a client that may acknowledge for one node may write a record for any node. So an
acknowledgement may have a MAC (``CodedAck``) over its bytes, with a key that only the node has. The key is derived from
a *master* and the node's id. A reader that acts on acknowledgements has the master, needs no list of nodes, and rejects
every record without the correct MAC. A reader without a master accepts every record.

    key of a node = HMAC-SHA-256(master, "ringlog acks of " + id of the node), as hex digits
    MAC           = HMAC-SHA-256(key of the node, the bytes of its NodeAck)

The MAC covers bytes, not fields. So releases that add a field to ``NodeAck`` can check each other's MACs. A load report
has a MAC with the same key (``CodedLoad``); its bytes never begin like those of an acknowledgement.

An incarnation is one run of a node. Its name consists of the number of the start, counted durably in the node's folder,
and a random id. A later start has a greater number, independent of clocks. Two runs from copies of one folder differ in
the id, which also orders them if their numbers are equal.

Only the greatest incarnation seen so far counts, because the process of another one may still serve under an old epoch.
Epochs of one incarnation never go back. So the acknowledgement with the newest epoch counts, and of equal epochs the
later record. A repeated record changes nothing. A name without a number precedes all others.

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
    decode_node_ack,
    decode_node_load,
    encode_coded_ack,
    encode_coded_load,
    unwrap_ack,
    unwrap_load,
)

WRONG_CODE: Final = "wrong_code"
ACK_REJECTED: Final = "ack_not_believed"
REJECTED_ACK_REMEDY: Final = (
    "give the node its ack.key, derived from a line of the agents' ack.master; if the node has it, "
    "find the client that writes in its name"
)
"""The next step for the operator."""
_ACKS_OF: Final = "ringlog acks of "


def key_of(master: str, node: NodeId) -> str:
    """Return the MAC key of a node."""
    return hmac.digest(master.encode(), f"{_ACKS_OF}{node}".encode(), "sha256").hex()


def with_mac(ack: bytes, key: str) -> bytes:
    """Return the record of an acknowledgement with a MAC. ``ack`` contains the bytes of a ``NodeAck``."""
    return encode_coded_ack(CodedAck(ack, _mac(ack, key)))


def load_with_mac(load: bytes, key: str) -> bytes:
    """Return the record of a load report with a MAC. ``load`` contains the bytes of a ``NodeLoad``."""
    return encode_coded_load(CodedLoad(load, _mac(load, key)))


def has_valid_mac(data: bytes, keys: Iterable[str]) -> bool:
    """Return True if a record of the topic ``acks`` has a MAC of one of these keys. Raises WireError."""
    found = unwrap_ack(data)
    return _is_mac_of(found.ack, found.code, keys)


def verified_ack(data: bytes, masters: Sequence[str]) -> NodeAck:
    """Decode a record of the topic ``acks`` and check its MAC. Without masters every record is accepted.

    Raises:
        WireError: The MAC is missing or wrong (``wrong_code``, with the node), or the bytes are not a record.
    """
    ack = decode_node_ack(data)
    if masters and not has_valid_mac(data, (key_of(master, ack.node) for master in masters)):
        raise WireError(WRONG_CODE, _shown(ack.node), "must have the MAC of its node")
    return ack


def verified_load(data: bytes, masters: Sequence[str]) -> NodeLoad:
    """Decode a record of the topic ``load`` and check its MAC, as ``verified_ack`` does."""
    load, found = decode_node_load(data), unwrap_load(data)
    if masters and not _is_mac_of(found.load, found.code, (key_of(master, load.node) for master in masters)):
        raise WireError(WRONG_CODE, _shown(load.node), "must have the MAC of its node")
    return load


def digest_of_key(key: str) -> str:
    """Return a fingerprint of a key that may be stored on disk. It identifies the key but cannot make a MAC."""
    return hmac.digest(key.encode(), b"which key of acknowledgements this is", "sha256").hex()


def _shown(node: str) -> str:
    """Return a node id for a log message. Other clients choose the text, so anything but a UUID is escaped."""
    return node if is_uuid(node) else ascii(node[:36])


def _is_mac_of(data: bytes, code: bytes, keys: Iterable[str]) -> bool:
    return any(hmac.compare_digest(code, _mac(data, key)) for key in keys)


def _mac(data: bytes, key: str) -> bytes:
    return hmac.digest(key.encode(), data, "sha256")


AT = "@"
Order = tuple[int, str]


def incarnation(start: int, run: str) -> str:
    """Return the name of the incarnation with this start number. ``run`` is a unique id."""
    return f"{start}{AT}{run}"


def incarnation_order(name: str) -> Order:
    """Return the sort key of an incarnation name."""
    start, at, run = name.partition(AT)
    return (int(start), run) if at and start.isascii() and start.isdecimal() and len(start) < 20 else (0, "")


ReceivedAck = tuple[int, NodeAck]
"""Offset and acknowledgement."""


def ack_order(received: ReceivedAck) -> tuple[int, int]:
    """Return the sort key of acknowledgements of one incarnation."""
    offset, ack = received
    return ack.applied, offset


def newest_ack(kept: ReceivedAck | None, received: ReceivedAck) -> ReceivedAck:
    """Return the acknowledgement that counts: of the later incarnation, else of the newer epoch, else the
    later record.
    """
    if kept is None:
        return received
    kept_order, received_order = incarnation_order(kept[1].incarnation), incarnation_order(received[1].incarnation)
    return received if (received_order, ack_order(received)) >= (kept_order, ack_order(kept)) else kept
