"""Replicas of partitions on a node: followers of the mutations topic, which is the log of every partition.

The topic is ordered, replicated and durable already; a group needs no second log, and no election (decision 94). What a
replica has is what the node's rows have: everything below the position that is committed with them
(``ringlog.node.rows.store``).

*Catching up.* A step *begins* where the topic ended when the node had adopted it, or later: who asks then is given all
that was written before the step was decided. The replica follows the step once the rows have passed that. A node that
was started again asks again, so what it has passed before is not taken on trust.

*Failure.* What the disk has refused is refused for good (``ringlog.node.rows.disk_rows``): the replicas of the node
have failed, whatever they had reached.

Invariants: a replica follows a step only if every write appended before the step is in the node's rows; its log grows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ringlog.kernel.model.zones import ZonePartition, partition_key
from ringlog.node.rows.replica import RowReplica
from ringlog.protocol.rebalancer.zone_groups import CAUSES

Step = tuple[str, int]
"""A partition, and the revision of its pending step."""


class Followers:
    """The port ``node.protocol.groups.GroupReplicas`` on the rows of ``row_replica``'s node, for one life of it.

    Thread-safe: works under the holder's lock.
    """

    def __init__(self, row_replica: RowReplica) -> None:
        self._row_replica = row_replica
        self._begun: dict[Step, Mapping[int, int]] = {}
        self._asked: set[Step] = set()
        self._failure: int | None = None

    def follows(self, partition: ZonePartition) -> bool:
        """Once the rows have passed where the step began."""
        step = step_of(partition)
        with self._row_replica.lock:
            begun = self._begun.get(step)
            if begun is None:
                self._asked.add(step)
                return False
            return all(self._row_replica.positions.get(number, 0) >= end for number, end in begun.items())

    def failure(self) -> int | None:
        """Since the disk refused something."""
        return self._failure

    def log(self, partition: ZonePartition) -> int:  # noqa: ARG002
        """How far the topic is judged: it is one log, whatever the partition."""
        with self._row_replica.lock:
            return sum(self._row_replica.positions.values())

    def only(self, steps: Collection[Step]) -> None:
        """Forget where others began."""
        with self._row_replica.lock:
            self._begun = {step: self._begun[step] for step in steps if step in self._begun}
            self._asked.intersection_update(steps)

    def asked(self) -> tuple[Step, ...]:
        """The steps of which nobody knows where they begin: ask where the topic ends, and say it by ``begin``."""
        with self._row_replica.lock:
            return tuple(sorted(self._asked))

    def begin(self, steps: Collection[Step], ends: Mapping[int, int]) -> None:
        """These steps begin here. ``ends``: of the topic's partitions, asked for after ``asked`` gave the steps."""
        with self._row_replica.lock:
            self._begun.update({step: ends for step in steps if step in self._asked})
            self._asked.difference_update(steps)

    def fail(self, code: str) -> None:
        """The node ends for a reason of that code."""
        self._failure = CAUSES.index(code) if code in CAUSES else 0


def step_of(partition: ZonePartition) -> Step:
    """What is pending of a partition, by its revision."""
    return partition_key(partition.zone, partition.number), partition.revisions.pending
