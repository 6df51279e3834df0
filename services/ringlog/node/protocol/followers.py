"""Replicas of zone partitions on a node: consumers of the mutations topic, which is the log of every partition.

The topic is already ordered, replicated and durable, so a group needs neither a second log nor an election (decision
94). A replica contains the node's rows: everything below the position that is committed with them
(``ringlog.node.rows.store``).

Catching up: a step *begins* at the topic's end, read after the node has adopted the step. That end includes every write
from before the step was decided. The replica follows the step once the rows have passed this point. A restarted node
reads the end again instead of relying on its earlier progress.

Failure: a disk error is final (``ringlog.node.rows.disk_rows``). After one, all replicas of the node have failed,
regardless of their progress.

Invariants: a replica follows a step only if the node's rows contain every write appended before the step. The length of
a replica's log never decreases.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ringlog.kernel.model.zones import ZonePartition
from ringlog.node.rows.replica import RowReplica
from ringlog.protocol.nodes.groups import Step, step_of
from ringlog.protocol.rebalancer.zone_groups import CAUSES


class RowGroupReplicas:
    """The port ``protocol.nodes.groups.GroupReplicas`` on the rows of a node, from one start to the next.

    Thread-safe: uses the lock of ``row_replica``.
    """

    def __init__(self, row_replica: RowReplica) -> None:
        self._row_replica = row_replica
        self._begun: dict[Step, Mapping[int, int]] = {}
        self._asked: set[Step] = set()
        self._failure: int | None = None

    def has_caught_up(self, partition: ZonePartition) -> bool:
        """Return True once the rows have passed the point where the step began."""
        step = step_of(partition)
        with self._row_replica.lock:
            begun = self._begun.get(step)
            if begun is None:
                self._asked.add(step)
                return False
            return all(self._row_replica.positions.get(number, 0) >= end for number, end in begun.items())

    def failure(self) -> int | None:
        """Return the number of the cause after a disk failure, otherwise None."""
        return self._failure

    def log_length(self, partition: ZonePartition) -> int:  # noqa: ARG002
        """Return the sum of the validated positions. All partitions share one log."""
        with self._row_replica.lock:
            return sum(self._row_replica.positions.values())

    def retain_steps(self, steps: Collection[Step]) -> None:
        """Forget the beginnings of all other steps."""
        with self._row_replica.lock:
            self._begun = {step: self._begun[step] for step in steps if step in self._begun}
            self._asked.intersection_update(steps)

    def steps_without_start(self) -> tuple[Step, ...]:
        """Return the steps that still lack a beginning. The caller reads the topic's end and calls ``set_start``."""
        with self._row_replica.lock:
            return tuple(sorted(self._asked))

    def set_start(self, steps: Collection[Step], ends: Mapping[int, int]) -> None:
        """Set the beginning of these steps.

        Args:
            ends: End offsets of the topic's partitions, read after ``steps_without_start`` returned the steps.
        """
        with self._row_replica.lock:
            self._begun.update({step: ends for step in steps if step in self._asked})
            self._asked.difference_update(steps)

    def fail(self, code: str) -> None:
        """Mark all replicas as failed, with the code of the error that ends the node."""
        self._failure = CAUSES.index(code) if code in CAUSES else 0
