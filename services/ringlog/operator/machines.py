"""The machines of nodes: free disk and certificates from load reports, and their problems within a week."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Final

from ringlog.kernel.balance.reports import CAPACITY_MAX
from ringlog.kernel.model.state import NO_MEMBER, ClusterState
from ringlog.kernel.values import MICROS_MAX, SECOND_US, Micros, NodeId, Value
from ringlog.operator.views.words import natural, span
from ringlog.protocol.balancer.load_book import ReceivedLoad

EXPIRES_SOON_US: Final[Micros] = 7 * 86_400 * SECOND_US
"""A certificate that ends within a week is a warning. It renews in the last third of its 30 days."""
DISK_FREE_MIN: Final = 2 << 30
"""Bytes that must be free on a disk with data."""


class Machine(Value):
    """A node's machine. ``disk_free`` in bytes, None: not measured. ``certificate_end``: None without a certificate."""

    disk_free: int | None = None
    certificate_end: Micros | None = None


class MachineProblem(Value):
    """A problem of the machine of ``node`` (a name): a sentence, and what to do next.

    ``broken``: a certificate has ended. False: the problem is a warning.
    """

    node: str
    broken: bool
    text: str
    next: str


def machines_of(records: Iterable[ReceivedLoad], nodes: Container[NodeId]) -> dict[NodeId, Machine]:
    """Return free disk and certificates from the last record of each of ``nodes``. Impossible values count as not
    measured.
    """

    def possible(value: int | None, most: int) -> int | None:
        return value if value is not None and 0 <= value <= most else None

    loads = {one.load.node: one.load for one in records if one.load is not None and one.load.node in nodes}
    return {
        node: Machine(possible(load.disk_free, CAPACITY_MAX), possible(load.certificate_end, MICROS_MAX))
        for node, load in loads.items()
    }


def machine_problems(state: ClusterState, machines: Mapping[NodeId, Machine], now: Micros) -> list[MachineProblem]:
    """Return the problems of machines, the worst first, then by node. Nodes that have left are omitted."""
    found = []
    for node, machine in machines.items():
        known = state.nodes.get(node)
        if known is None or known.state in NO_MEMBER:
            continue
        end, free = machine.certificate_end, machine.disk_free
        if end is not None and end - now < EXPIRES_SOON_US:
            text = f"ends in {span(end - now)}" if end > now else "has expired"
            remedy = f"renew it: ringlog cluster certificates FOLDER --node {known.name}"
            found.append(MachineProblem(known.name, end <= now, f"the certificate of node {known.name} {text}", remedy))
        if free is not None and free < DISK_FREE_MIN:
            text = f"the disk of node {known.name} has {free / (1 << 30):.1f} GiB left"
            found.append(MachineProblem(known.name, False, text, "delete other files from its disk, or enlarge it"))
    return sorted(found, key=lambda one: (not one.broken, natural(one.node)))
