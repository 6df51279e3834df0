"""Writes of rows: send a mutation, learn its position in the topic, and learn the decision on it.

    with RowWriter(client.replica, "127.0.0.1:9092", "shop") as writer, Coordinator(client.replica) as coordinator:
        written = writer.write(mutation)  # acknowledged: the broker has it
        assert not writer.verdict(written).code  # decided: every reader accepts it
        coordinator.read_rows("ks.t", b"key", at=written.at)  # and this one has it

**Context of a write** (``named``). A mutation names the cluster, the id of its table, and the author's epoch. Readers
use the table version of that epoch, if it is in effect. A mutation that names a table version too new to be in effect
would be rejected.

**Decision.** It is a function of the write, its append time and the log (``kernel.generations.verdicts``). So each
author computes it on its own replica, and no message is needed. The decision is final when the log has a validation
watermark above all inputs of the write. Nodes request a higher watermark when they have read the write. If a CDC job
runs, each rejected write also has a dead letter, even if its table has no CDC log. Without a job, nodes only drop the
write and count it.
"""

from __future__ import annotations

from ringlog.client.errors import WriteUnanswered
from ringlog.kernel.generations.acceptance import append_time_us
from ringlog.kernel.generations.admission import AdmissionRules, WriteVerdict, rules_of, verdict
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.ring.murmur3 import compose
from ringlog.kernel.values import Epoch, Micros, Value, replace
from ringlog.log.errors import LogError, LogUnavailable
from ringlog.log.kafka.producer import AckedProducer
from ringlog.log.kafka.topics import topic_name
from ringlog.log.replicas.replica import LogReplica
from ringlog.wire.records import Mutation, encode_mutation, mutation_key

TIMEOUT_S = 10.0


class WrittenRow(Value):
    """A write that the broker has stored, at ``offset`` of ``partition`` of the mutations topic.

    ``appended``: the broker's append time.
    """

    mutation: Mutation
    partition: int
    offset: int
    appended: Micros

    @property
    def at(self) -> dict[int, int]:
        """The position after the write: a read at this position includes the write if it was accepted."""
        return {self.partition: self.offset + 1}


def with_context(state: ClusterState, mutation: Mutation) -> Mutation:
    """Return the mutation with missing context filled in from ``state``."""
    table = state.tables.get(f"{mutation.keyspace}.{mutation.table}")
    return replace(
        mutation,
        cluster_id=mutation.cluster_id or state.cluster_id,
        table_id=mutation.table_id or (table.id if table is not None else None),
        epoch=state.epoch if mutation.epoch is None and mutation.table_version is None else mutation.epoch,
    )


class VerdictSearch:
    """A search for the decision on a write in successive states."""

    def __init__(self, mutation: Mutation, appended: Micros) -> None:
        self._mutation = mutation
        self._appended = appended
        self._before: tuple[ClusterState, AdmissionRules] | None = None

    def found(self, state: ClusterState) -> tuple[WriteVerdict, Epoch] | None:
        """Return the decision and the epoch of ``state``, or None if the decision is not final yet."""
        if state.settled.until == 0:
            # Without a validation watermark, no decision is final.
            return None
        rules = rules_of(state, self._before)
        self._before = state, rules
        found = verdict(rules, self._mutation, self._appended)
        return None if found is None else (found, state.epoch)


class RowWriter:
    """A writer of rows to the cluster that ``replica`` follows. The replica must be started. Thread-safe."""

    def __init__(self, replica: LogReplica, bootstrap: str, cluster: str) -> None:
        self._replica = replica
        self._topic = topic_name(cluster, "mutations")
        self._producer = AckedProducer(bootstrap, "ringlog-rows")

    def close(self) -> None:
        """Close the producer after a short wait for pending writes."""
        self._producer.close()

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, mutation: Mutation, timeout_s: float = TIMEOUT_S) -> WrittenRow:
        """Send a mutation with the context of its table. Returns after the broker's acknowledgement.

        Acknowledged does not mean accepted: see ``verdict``. Raises WriteUnanswered (outcome unknown: the same mutation
        may be sent again), RecordTooLarge, WireError.
        """
        mutation = with_context(self._replica.state, mutation)
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
        """Return the decision of every reader on a write: an empty code, or the code of the rule that rejects it.

        Raises WaitTimedOut if the decision is not final in time, ReplicaHalted. Causes of a time-out: no node reads the
        topic, or the brokers' clocks are far ahead.
        """
        sought = VerdictSearch(written.mutation, written.appended)
        found, _ = self._replica.wait_for(sought.found, timeout_s, "a validation watermark above the write")
        return found
