"""The simulated broker's topics and an archive's location, as the ports of ``ringlog.log``, for blocking code.

Answers return at once. Blocking code runs in one instant of virtual time. Its process can die before or after each of
its writes (``Deaths``). A completed write is kept, and later writes do not happen. Code that runs over several instants
waits between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future

from ringlog.log.errors import ArchiveUnavailable, LogTruncated, LogUnavailable
from ringlog.log.port import LOOKUP_TIMEOUT_S, LogRecord, completed_future
from ringlog_sim.devices.broker import SNAPSHOTS, SimBroker
from ringlog_sim.devices.world import Chance, PowerCut, SimHost

IDENTITY = "the simulated log"


class Deaths:
    """The deaths of processes in blocking writes: in the ``left``-th write from now, 0 for none."""

    def __init__(self, seed: int) -> None:
        self.left = 0
        self._chance = Chance(seed, "deaths")

    def before(self) -> bool:
        """Begin a write. Raise PowerCut, or return True if the writer dies after it."""
        if not self.left:
            return False
        self.left -= 1
        if self.left:
            return False
        if self._chance.happens(0.5):
            raise PowerCut
        return True


class TopicAtOnce:
    """One partition, as seen from ``host``. None: as seen by a reader that waits as long as necessary.

    All readers see the snapshots as after a compaction: the newest record of each key, if it has a value.
    """

    def __init__(self, broker: SimBroker, topic: str, deaths: Deaths, host: SimHost | None = None) -> None:
        self.name = f"simulated.{topic}"
        self._broker = broker
        self._topic = topic
        self._deaths = deaths
        self._host = host

    def append(self, records: Sequence[bytes]) -> None:
        """Append, as in ``MetadataLog``."""
        for data in records:
            self.put("", data)

    def append_async(self, records: Sequence[bytes]) -> Future[None]:
        """Append, as in ``MetadataLog``."""
        return completed_future(lambda: self.append(records))

    def put(self, key: str, data: bytes | None) -> int:
        """Write a record, as in ``KeyedRecords``."""
        self.reach()
        is_last = self._deaths.before()
        offset = self._broker.put(self._topic, key, data or b"")
        if is_last:
            raise PowerCut
        return offset

    def delete_before(self, offset: int) -> None:
        """Delete the records before the offset."""
        self.reach()
        is_last = self._deaths.before()
        self._broker.delete_before(self._topic, offset)
        if is_last:
            raise PowerCut

    def begin_offset(self) -> int:
        """Return the first offset, as in ``MetadataLog``."""
        self.reach()
        return self._broker.partition(self._topic).begin

    def end_offset(self, timeout_s: float = LOOKUP_TIMEOUT_S) -> int:  # noqa: ARG002
        """Return the end offset, as in ``MetadataLog``."""
        self.reach()
        return self._broker.partition(self._topic).high

    def identity(self) -> str:
        """Return the identity, as in ``MetadataLog``."""
        return IDENTITY

    def kafka_id(self) -> str:
        """Return an empty id, as in ``MetadataLog``."""
        return ""

    def verify(self) -> None:
        """Do nothing, as in ``MetadataLog``."""

    def tail(self, from_offset: int) -> TailAtOnce:
        """Return a reader, as in ``MetadataLog``."""
        return TailAtOnce(self, from_offset)

    def close(self) -> None:
        """Do nothing, as in ``MetadataLog``."""

    def records(self, begin: int) -> list[LogRecord]:
        """Return the records from an offset on. Raise LogUnavailable or LogTruncated."""
        self.reach()
        partition = self._broker.partition(self._topic)
        if begin < partition.begin:
            raise LogTruncated(f"{self.name}: offset {begin} is before {partition.begin}")
        there = partition.records[: partition.visible]
        if self._topic == SNAPSHOTS:
            newest = {record.key: record for record in there}
            there = [record for record in there if newest[record.key] is record and record.value]
        return [LogRecord(record.offset, record.value, record.time) for record in there if record.offset >= begin]

    def reach(self) -> None:
        """Raise LogUnavailable if the host does not reach the broker now."""
        if not self._broker.answers(self._host):
            raise LogUnavailable(f"{self.name} does not answer")


class TailAtOnce:
    """A reader of a ``TopicAtOnce``."""

    def __init__(self, topic: TopicAtOnce, position: int) -> None:
        self.position = position
        self._topic = topic

    def poll(self, timeout_s: float, records_max: int = 1_000) -> Sequence[LogRecord]:  # noqa: ARG002
        """Return the next records, as in ``LogTail``."""
        found = self._topic.records(self.position)[:records_max]
        self.position = found[-1].offset + 1 if len(found) == records_max else self._topic.end_offset()
        return found

    def close(self) -> None:
        """Do nothing, as in ``LogTail``."""


class PlaceAtOnce:
    """An archive's location in a dictionary that all agent hosts share.

    ``refuses``: the operations that currently fail: ``ALL``, ``WRITES``, or none (empty).
    """

    name = "simulated"
    ALL = "all"
    WRITES = "writes"

    def __init__(self, files: dict[str, bytes], deaths: Deaths, refuses: Callable[[], str]) -> None:
        self._files = files
        self._deaths = deaths
        self._refuses = refuses

    def names(self) -> list[str]:
        """Return the file names, as in ``ArchiveLocation``."""
        self._reach()
        return list(self._files)

    def first_line(self, name: str) -> bytes:
        """Return the first line of a file, as in ``ArchiveLocation``."""
        self._reach()
        return self._files[name].splitlines(keepends=True)[0]

    def read(self, name: str) -> bytes:
        """Return a file, as in ``ArchiveLocation``."""
        self._reach()
        return self._files[name]

    def write(self, name: str, data: bytes) -> None:
        """Write a file, as in ``ArchiveLocation``."""
        if self._refuses():
            raise ArchiveUnavailable(f"{self.name} takes nothing")
        is_last = self._deaths.before()
        self._files[name] = data
        if is_last:
            raise PowerCut

    def _reach(self) -> None:
        if self._refuses() == self.ALL:
            raise ArchiveUnavailable(f"{self.name} does not answer")
