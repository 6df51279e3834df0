"""Repair of the tablets of a table in rounds.

The limits on streaming admit only some repairs at once. So each round is one entry of the log that starts as many
repairs as fit. A repair counts as done if it started after the first round and ended without a reason for a failure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ringlog.kernel.commands.placement.tablets import TabletMigration, admissible
from ringlog.kernel.model.outcome import Rejected
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.tablet_map import TabletMap
from ringlog.kernel.tablets.stages import REPAIR, kind_of

TEMPORARY = frozenset({"streaming_limit", "tablet_in_transition", "operations_in_flight"})
"""Codes of rejections that need no operator: the condition ends."""


@dataclass(slots=True)
class TabletRepairs:
    """The progress of the repair of some tablets of one table.

    Attributes:
        begin: The epoch before the first round.
        made: The epoch that made the tablets; a split or a merge changes it.
        resized: True after a split, a merge, or a drop of the table: the numbers mean other tablets.
        failed: Reason of the failed repair by tablet.
        waits: Why the next round must wait; empty if it need not.
    """

    table: str
    wanted: tuple[int, ...]
    begin: int
    made: int
    resized: bool = False
    repaired: set[int] = field(default_factory=set)
    failed: dict[int, str] = field(default_factory=dict)
    waits: str = ""

    def folded(self, before: ClusterState, after: ClusterState, *_: object) -> None:
        """Note the repairs that end with this entry. A follower of the replica (``LogReplica.subscribe``)."""
        old, new = before.tablets.get(self.table), after.tablets.get(self.table)
        if old is new or self.resized:
            return
        if old is None or new is None or new.made != self.made:
            self.resized = True
            return
        for number in self.wanted:
            ended = old.transitions.get(number)
            is_repair = ended is not None and kind_of(ended) is REPAIR and ended.started > self.begin
            if ended is None or not is_repair or number in new.transitions:
                continue
            if ended.reason:
                self.failed[number] = ended.reason
            else:
                self.repaired.add(number)
                self.failed.pop(number, None)

    def left(self) -> tuple[int, ...]:
        """Return the tablets whose repair did not end, by number."""
        return tuple([number for number in self.wanted if number not in self.repaired and number not in self.failed])

    def next_round(self, state: ClusterState) -> tuple[tuple[int, ...], Rejected | None]:
        """Return the tablets whose repair may start now, and the rejection that an operator must fix to continue.

        Both are empty while the next round must wait for repairs, moves or operations; ``waits`` then says why.
        """
        asked = [TabletMigration(self.table, number, REPAIR.name) for number in self.left()]
        chosen, refused = admissible(state, asked)
        self.waits = "" if chosen or not refused else refused[0][1].detail
        permanent = [one for _, one in refused if one.code not in TEMPORARY]
        if chosen or len(permanent) < len(refused):
            return tuple([one.tablet for one in chosen]), None
        return (), permanent[0] if permanent else None

    def command(self, numbers: Iterable[int]) -> str:
        """Return the command line that repairs these tablets."""
        return f"ringlog tablet repair {self.table} {' '.join(map(str, sorted(numbers)))}"


def repairs_of(state: ClusterState, tablets: TabletMap, numbers: Iterable[int] = ()) -> TabletRepairs:
    """Return the repair of these tablets, or of all.."""
    wanted = tuple(dict.fromkeys(numbers)) or tuple(range(tablets.count))
    return TabletRepairs(tablets.table, wanted, state.epoch, tablets.made)
