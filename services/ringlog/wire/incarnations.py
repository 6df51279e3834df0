"""Which run of a node an acknowledgement is of: incarnations in their order, and which acknowledgement to believe.

A node counts its starts in its folder, durably, before it says a word; an incarnation is that number and an id drawn at
the start. So a later start has the greater one, by no clock. Two runs of *one* folder that was copied are
distinguished by the id, and ordered by it where the number is the same. Only the greatest that was ever heard of
counts: the other's process may still serve under an epoch that this one has left.

Within one incarnation epochs never go back. So the acknowledgement of the newest epoch counts, of these the later
record: one that somebody sends again puts nothing back.

Runs of release 0.1.0 have an id and no number; they come before all others.
"""

from __future__ import annotations

from ringlog.wire.records import NodeAck

AT = "@"
Order = tuple[int, str]


def incarnation(start: int, run: str) -> str:
    """That of a node's so-manieth ``start``; ``run``: an id that no other has."""
    return f"{start}{AT}{run}"


def order_of(name: str) -> Order:
    """Incarnations ascend with it."""
    start, at, run = name.partition(AT)
    return (int(start), run) if at and start.isascii() and start.isdecimal() and len(start) < 20 else (0, "")


Heard = tuple[int, NodeAck]
"""Offset and acknowledgement."""


def place_of(heard: Heard) -> tuple[int, int]:
    """Acknowledgements of one incarnation ascend with it."""
    offset, ack = heard
    return ack.applied, offset


def believed(known: Heard | None, heard: Heard) -> Heard:
    """Of a node's acknowledgements: that of the later incarnation; of one incarnation that of the newest epoch."""
    if known is None:
        return heard
    known_order, heard_order = order_of(known[1].incarnation), order_of(heard[1].incarnation)
    return heard if (heard_order, place_of(heard)) >= (known_order, place_of(known)) else known
