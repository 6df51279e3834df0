"""Writes of rows: a mutation that says what its author knew, its place in the topic, and the verdict on it.

    with RowWriter(client.replica, "127.0.0.1:9092", "shop") as writer, Coordinator(client.replica) as coordinator:
        written = writer.write(mutation)  # acknowledged: the broker has it
        assert not writer.verdict(written).code  # judged: every reader keeps it, or none does
        coordinator.read_rows("ks.t", b"key", at=written.at)  # and this one has it

**What the author knew** (``named``): the cluster, the table's id, and the epoch, by which the table is read as it was
known then, once that counts: a version that is so new that it counts for no write yet would be refused by name.

**The verdict** is a function of the write, its append time and the log (``kernel.generations.verdicts``), so its author
works it out alone, on its own replica: nobody needs to send it. It is there when the log has a settled time above all
that the write uses; nodes ask for that when they have read the write. If a CDC job runs, each refused write has a dead
letter as well, whether its table keeps a CDC log or not. Without a job nodes only drop the write and count it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ringlog.client.errors import WriteUnanswered
from ringlog.kernel.generations.acceptance import append_time_us
from ringlog.kernel.generations.admission import AdmissionRules, WriteVerdict, rules_of, verdict
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.ring.murmur3 import compose
from ringlog.kernel.values import Epoch, Micros
from ringlog.log.errors import LogError, LogUnavailable
from ringlog.log.kafka.producer import AckedProducer
from ringlog.log.kafka.topics import topic_name
from ringlog.log.replicas.replica import LogReplica
from ringlog.wire.records import Mutation, encode_mutation, mutation_key

TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class WrittenRow:
    """A write that the broker has, at ``offset`` of a partition of the mutations topic; appended at ``appended``, by
    the broker's clock.
    """

    mutation: Mutation
    partition: int
    offset: int
    appended: Micros

    @property
    def at(self) -> dict[int, int]:
        """The position above it: a read at it has the write, if it is accepted."""
        return {self.partition: self.offset + 1}


def named(state: ClusterState, mutation: Mutation) -> Mutation:
    """The write with what its author knows by ``state``; what it names already stays."""
    table = state.tables.get(f"{mutation.keyspace}.{mutation.table}")
    return replace(
        mutation,
        cluster_id=mutation.cluster_id or state.cluster_id,
        table_id=mutation.table_id or (table.id if table is not None else None),
        epoch=state.epoch if mutation.epoch is None and mutation.table_version is None else mutation.epoch,
    )


class VerdictSearch:
    """Looks for the verdict on a write in one state after the other."""

    def __init__(self, mutation: Mutation, appended: Micros) -> None:
        self._mutation = mutation
        self._appended = appended
        self._before: tuple[ClusterState, AdmissionRules] | None = None

    def found(self, state: ClusterState) -> tuple[WriteVerdict, Epoch] | None:
        """The verdict, and the epoch that it is known at; None: it is too early to tell."""
        if state.settled.until == 0:
            return None  # nobody judges before a settled time was promised
        rules = rules_of(state, self._before)
        self._before = state, rules
        found = verdict(rules, self._mutation, self._appended)
        return None if found is None else (found, state.epoch)


class RowWriter:
    """Writes rows of the cluster that ``replica`` follows, which has been started. Safe from threads."""

    def __init__(self, replica: LogReplica, bootstrap: str, cluster: str) -> None:
        self._replica = replica
        self._topic = topic_name(cluster, "mutations")
        self._producer = AckedProducer(bootstrap, "ringlog-rows")

    def close(self) -> None:
        """Give what is under way a moment."""
        self._producer.close()

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, mutation: Mutation, timeout_s: float = TIMEOUT_S) -> WrittenRow:
        """Send a write, with what is known of its table now. Returns when the broker has it; whether it is accepted
        ``verdict`` says.

        Raises WriteUnanswered (nobody knows whether it is there: the same mutation may be sent again), RecordTooLarge,
        WireError.
        """
        mutation = named(self._replica.state, mutation)
        key = compose([part or b"" for part in mutation.partition_key])
        try:
            future = self._producer.send(
                self._topic, encode_mutation(mutation), key=mutation_key(mutation.keyspace, mutation.table, key)
            )
            place = future.result(timeout_s)
        except (LogUnavailable, TimeoutError) as error:
            why = error.message if isinstance(error, LogError) else f"not acknowledged within {timeout_s:g} s"
            raise WriteUnanswered(f"{mutation.keyspace}.{mutation.table}", why) from error
        return WrittenRow(mutation, place.partition, place.offset, append_time_us(place.time_ms))

    def verdict(self, written: WrittenRow, timeout_s: float = TIMEOUT_S) -> WriteVerdict:
        """What every reader finds of a write: an empty code, or that of the rule that refuses it.

        Raises WaitTimedOut while nobody can know (no node reads the topic, or the brokers' clocks are far ahead),
        ReplicaHalted.
        """
        sought = VerdictSearch(written.mutation, written.appended)
        found, _ = self._replica.wait_for(sought.found, timeout_s, "a settled time above the write")
        return found
