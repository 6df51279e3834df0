"""A node's rows on the simulated disk. They survive its process, up to one of the last commits.

In other runs a node starts without rows and reads the mutations from the beginning, like a node with a lost file.
``retain`` truncates the topic up to the offset that every node has durably stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringlog.node.rows.memory_rows import MemoryRows
from ringlog.node.rows.store import RowsMark
from ringlog.protocol.nodes.errors import RowsDamaged
from ringlog_sim.devices.world import Chance, PowerCut, SimHost, SimWorld

if TYPE_CHECKING:
    from ringlog_sim.simulation import Simulation

ROWS, MARK = "rows", "mark of rows"


class FailingRows(MemoryRows):
    """Rows on a disk that rejects every commit while ``fails`` is set."""

    fails = False

    def commit(self, mark: RowsMark, sync: bool = False) -> None:
        """Commit, as the port specifies. Raise RowsDamaged if the disk fails."""
        if self.fails:
            raise RowsDamaged("the simulated disk refuses to write")
        super().commit(mark, sync)


class SimRows(FailingRows):
    """Rows on the disk of ``host``. A power cut during a commit keeps the whole commit or none of it."""

    def __init__(self, world: SimWorld, host: SimHost) -> None:
        super().__init__()
        self._world = world
        self._host = host

    def commit(self, mark: RowsMark, sync: bool = False) -> None:
        """Commit, as the port specifies. Raise PowerCut."""
        super().commit(mark)
        try:
            self._world.store(self._host, MARK, mark)
        except PowerCut:
            if self._host.disk.get(MARK) is not mark:
                self.crash(1)
            raise
        if sync:
            self.synced()


def rows_of(sim: Simulation, host: SimHost, start: int) -> FailingRows:
    """Return the initial rows of a node."""
    if not sim.shared["keeps_rows"]:
        return FailingRows()
    found: SimRows | None = host.disk.get(ROWS)
    if found is None:
        found = host.disk[ROWS] = SimRows(sim.world, host)
    lost = Chance(sim.world.seed, f"rows/{host.name}/{start}").below(found.unsynced + 1)
    found.crash(lost)
    sim.did["kept rows", "commits lost"] += lost
    sim.did["kept rows", "begun with"] += len(found)
    return found


def retain(sim: Simulation) -> None:
    """Truncate the mutations as far as allowed."""
    nodes = [node for _, node in sorted(sim.shared["nodes"].items()) if node.starts]
    marks = [found.safe if (found := node.host.disk.get(ROWS)) is not None else RowsMark() for node in nodes]
    begin: dict[int, int] = sim.shared["mutations_begin"]
    for partition in {number for mark in marks for number in mark.positions}:
        end = min(mark.positions.get(partition, 0) for mark in marks)
        sim.did["kept rows", "let go"] += end > begin.get(partition, 0)
        begin[partition] = max(end, begin.get(partition, 0))
