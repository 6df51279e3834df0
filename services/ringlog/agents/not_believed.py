"""Whose acknowledgements are passed over, since they have no code by the key of their node: for all to see.

A node is among them from such a record on until one comes that is believed. What is shown has the form of a refused
proposal in the agent's status, so that every operator learns of it, with a master or without.

Strangers invent nodes: shown is who is in the directory, and of the others at most ``NODES_MAX`` are remembered.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Final, Protocol

from ringlog.kernel.values import Micros, NodeId
from ringlog.wire.ack_codes import ACK_NOT_BELIEVED, NOT_BELIEVED_ENDS
from ringlog.wire.records import NodeAck, RefusedProposal

NODES_MAX: Final = 10_000


class _Named(Protocol):
    @property
    def name(self) -> str: ...


class NotBelieved:
    """For one thread that hears; any may look. ``records``: how many were passed over."""

    def __init__(self) -> None:
        self.records = 0
        self._since: dict[NodeId, Micros] = {}

    def begin_anew(self) -> None:
        """All is read again."""
        self._since = {}

    def believes(self, node: NodeId) -> None:
        """Its newest word is its own."""
        self._since.pop(node, None)

    def passes_over(self, node: NodeId, now: Micros, known: Container[NodeId]) -> None:
        """A record of ``node`` has no right code. ``known``: the nodes of the directory."""
        self.records += 1
        if len(self._since) >= NODES_MAX and node not in self._since:
            self._since = {one: since for one, since in self._since.items() if one in known}
        if len(self._since) < NODES_MAX:
            self._since.setdefault(node, now)

    def shown(self, known: Mapping[NodeId, _Named]) -> tuple[RefusedProposal, ...]:
        """Those of the directory, who has waited longest first."""
        found = [(node, since) for node, since in self._since.copy().items() if node in known]
        return tuple(
            RefusedProposal(known[node].name, NodeAck.__name__, ACK_NOT_BELIEVED, NOT_BELIEVED_ENDS, since)
            for node, since in found
        )
