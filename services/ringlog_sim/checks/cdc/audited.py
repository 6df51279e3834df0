"""``ringlog audit`` on the topics of a run: it must find no failure in a log that the other checks accept.

At the end of a run, the audit reads the simulated topics as it reads Kafka's. The change topics are derived from the
last state. A run with a second checkpoint is skipped if a table had images, because the audit does not know their first
states. The image check has the same limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING

from ringlog.kernel.changes import ChangeRecord, project
from ringlog.kernel.sections import CDC_GENERATIONS, CDC_STREAMS, EPOCHS
from ringlog.kernel.values import Value
from ringlog.wire.changes import encode_change_record
from ringlog.wire.records import CdcRow, encode_cdc_row, encode_dead_letter
from ringlog_audit.sources.topics import AuditError, Decoder
from ringlog_audit.verify import Expected, audit
from ringlog_schemas import published
from ringlog_sim.checks.base import Check
from ringlog_sim.devices.broker import CDC, DEAD, METADATA, MUTATIONS, SimRecord

if TYPE_CHECKING:
    from ringlog.kernel.model.tables import Table
    from ringlog_sim.simulation import Simulation

SHARE = 4
"""Every fourth run is audited."""
PUBLISHED = (CDC_GENERATIONS, CDC_STREAMS, EPOCHS)


class AuditedRecord(Value):
    """A record as the audit reads it. ``time``: microseconds."""

    place: tuple[int, int]
    data: tuple[bytes | None, bytes | None]
    time: int = 0

    def partition(self) -> int:
        """Return its partition."""
        return self.place[0]

    def offset(self) -> int:
        """Return its offset."""
        return self.place[1]

    def key(self) -> bytes | None:
        """Return its key."""
        return self.data[0]

    def value(self) -> bytes | None:
        """Return its value."""
        return self.data[1]

    def timestamp(self) -> tuple[int, int]:
        """Return its append time in milliseconds, like Kafka's client."""
        return 2, self.time // 1_000


class SimTopics:
    """The topics of a simulated cluster at the end of the run."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim

    def name(self, suffix: str) -> str:
        """Return the name of a topic in rows and letters."""
        return suffix

    def records(self, suffix: str, since: Mapping[int, int] | None = None) -> Iterator[AuditedRecord]:
        """Yield every visible record. The audit of a run requests no others."""
        assert since is None, "the audit without nodes has no start"
        if suffix in PUBLISHED:
            for (topic, key), value in project(self._sim.log.states[-1]).items():
                if topic == suffix:
                    yield AuditedRecord((0, 0), encode_change_record(ChangeRecord(topic, key, value))[1:])
            return
        for partition in self._sim.broker.topics[suffix]:
            for record in partition.records[: partition.visible]:
                yield AuditedRecord(
                    (partition.number, record.offset), (_key(suffix, record), _value(suffix, record)), record.time
                )


class _Schemas:
    """The topic of schemas."""

    def name(self, suffix: str) -> str:
        return suffix

    def records(self, suffix: str, since: Mapping[int, int] | None = None) -> Iterator[AuditedRecord]:
        for key, text in published():
            yield AuditedRecord((0, 0), (key.encode(), text.encode()))


@cache
def _decoder() -> Decoder:
    return Decoder(_Schemas())


def _key(suffix: str, record: SimRecord) -> bytes | None:
    return bytes.fromhex(record.key) if suffix == CDC else record.key.encode()


def _value(suffix: str, record: SimRecord) -> bytes:
    if suffix in (METADATA, MUTATIONS):
        return record.data
    assert suffix in (CDC, DEAD), suffix
    return encode_cdc_row(record.value) if isinstance(record.value, CdcRow) else encode_dead_letter(record.value)


class AuditHolds(Check):
    """The audit finds no failure after any change of tables and generations and any fault of the job."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._claims = 0

    def claimed(self) -> None:
        """Count a new checkpoint, which starts new image states."""
        self._claims += 1

    def quiet(self) -> None:
        """Audit some of the runs."""
        sim = self.sim
        if sim.world.seed % SHARE or not any(partition.visible for partition in sim.broker.topics[CDC]):
            return
        if self._claims > 1 and any(table.cdc.preimage != "false" or table.cdc.postimage for table in self._tables()):
            return
        try:
            report = audit(SimTopics(sim), Expected(), lambda _: None, _decoder())
        except AuditError as error:
            sim.broken("cdc_audit", str(error))
            return
        sim.did["cdc", "audited"] += 1
        for check in report.checks:
            if not check.ok and check.name != "carried_out":
                sim.broken("cdc_audit", f"{check.name}: {check.failures} times, e.g. {check.examples[:2]}")

    def _tables(self) -> Iterator[Table]:
        before = None
        for state in self.sim.log.states:
            if state.tables is not before:
                before = state.tables
                yield from state.tables.values()
