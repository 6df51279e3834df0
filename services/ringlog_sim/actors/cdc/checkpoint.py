"""The checkpoint folder of the simulated CDC job on disk, and a driver's plan chain in it.

Each file appears as a whole, and only if it did not exist. A write takes time. A driver that dies during a write does
not know whether the file exists. After a wipe the folder is *gone*: a process with the old folder can no longer write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ringlog_cdc.errors import CdcError, ChainBroken, ChainMoved
from ringlog_cdc.plan.chain import PlanChain, StoredChain, canonical, context_name
from ringlog_cdc.plan.plan import GENESIS, PlanEntry, check_link
from ringlog_cdc.plan.recovered_rows import KnownRows
from ringlog_sim.actors.cdc.image_states import ImageDisk
from ringlog_sim.devices.world import Chance, SimHost
from ringlog_sim.replica import Step

if TYPE_CHECKING:
    from ringlog_sim.simulation import Simulation

NAME = "checkpoint"
WRITE_US = (50, 1_500)


@dataclass(eq=False, slots=True)
class Folder:
    """The content of the checkpoint. ``offsets`` and ``commits`` belong to Spark.

    ``offsets``: the end of each batch, stored before the batch begins. ``commits``: committed batches. ``recovers``:
    the topics may have rows of an earlier checkpoint. ``known_rows``: those rows, after their look-up.
    """

    claimed: bool = False
    offsets: dict[int, dict[int, int]] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)
    plans: dict[int, PlanEntry] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    contexts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    images: ImageDisk | None = None
    recovers: bool = False
    known_rows: KnownRows | None = None

    def durable_positions(self) -> dict[int, int]:
        """Return source partition to the first offset that may not be durable."""
        return PlanChain(self.plans, self.done).durable_positions()


class Checkpoint(StoredChain[Step, Step]):
    """One driver's view of the folder on ``disk``. Another driver may use the same folder.

    ``stored`` is called when an entry is stored.
    """

    def __init__(
        self, sim: Simulation, disk: SimHost, host: SimHost, chance: Chance, stored: Callable[[PlanEntry], None]
    ) -> None:
        self.folder: Folder = disk.disk.setdefault(NAME, Folder())
        self.sim = sim
        self._disk = disk
        self._host = host
        self._chance = chance
        self._stored = stored
        super().__init__(self.folder.plans, self.folder.done)
        before = GENESIS
        for _, entry in sorted(self._entries.items()):
            check_link(before, entry)
            before = entry

    def writes(self) -> Step:
        """Wait for the duration of a write. Raise CdcError if the folder is gone."""
        self.sim.shared["job"].step(self._host)
        yield self._chance.between(*WRITE_US)
        if self._disk.disk.get(NAME) is not self.folder:
            raise CdcError("checkpoint_gone", "the folder was deleted")

    def append(self, entry: PlanEntry) -> Step:
        """Store the next entry, as in the base class."""
        check_link(self.head, entry)
        yield from self.writes()
        if entry.sequence in self.folder.plans:
            raise ChainMoved(entry.sequence)
        self.folder.plans[entry.sequence] = entry
        self._stored(entry)
        self.sim.shared["job"].step(self._host)
        yield self._chance.between(*WRITE_US)
        self._entries[entry.sequence] = entry

    def mark_done(self, entry: PlanEntry) -> Step:
        """Record that all rows of the entry are durable."""
        yield from self.writes()
        self.folder.done.add(entry.sequence)
        self._done.add(entry.sequence)

    def put_context(self, context: Mapping[str, Any]) -> Step:
        """Store a context if it does not exist, as in the base class. Return its name."""
        name = context_name(canonical(context))
        if name not in self.folder.contexts:
            yield from self.writes()
            self.folder.contexts[name] = context
        return name

    def context(self, name: str) -> Mapping[str, Any]:
        """Return the context stored under ``name``. Raise ChainBroken if it is missing."""
        try:
            return self.folder.contexts[name]
        except KeyError:
            raise ChainBroken(f"context {name} is missing") from None
