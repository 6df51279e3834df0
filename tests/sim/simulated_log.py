"""The simulator's broker behind the log port: each call advances virtual time until its answer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future

from ringlog.log.port import LOOKUP_TIMEOUT_S, LogRecord, completed_future
from ringlog_sim.devices.broker import METADATA, SimBroker, SimRecord
from ringlog_sim.devices.world import SECOND
from tests.sim.step_runner import run_steps


class SimulatedTail:
    """A reader; it keeps received records until it returns them."""

    def __init__(self, log: SimulatedLog, position: int) -> None:
        self._log = log
        self._held: list[SimRecord] = []
        self._tail = log.broker.tail(log.host, METADATA, 0, position, lambda records: self._held.extend(records))

    @property
    def position(self) -> int:
        return self._held[0].offset if self._held else self._tail.position

    def poll(self, timeout_s: float, records_max: int = 1_000) -> Sequence[LogRecord]:
        world = self._log.broker.world
        with self._log.lock:
            world.run(world.now + round(timeout_s * SECOND), lambda: bool(self._held))
            found, self._held = self._held[:records_max], self._held[records_max:]
        return [LogRecord(record.offset, record.value, record.time) for record in found]

    def close(self) -> None:
        self._tail.close()


class SimulatedLog:
    """The log as one host of the world sees it; threads use the world one after another under ``lock``."""

    name = METADATA

    def __init__(self, broker: SimBroker, host: str, lock: threading.Lock) -> None:
        self.broker = broker
        self.host = broker.world.host(host)
        self.lock = lock

    def append(self, records: Sequence[bytes]) -> None:
        with self.lock:
            values = [("", data) for data in records]
            run_steps(self.broker.world, self.host, self.broker.append(self.host, METADATA, values))

    def append_async(self, records: Sequence[bytes]) -> Future[None]:
        return completed_future(lambda: self.append(records))

    def begin_offset(self) -> int:
        return 0

    def end_offset(self, timeout_s: float = LOOKUP_TIMEOUT_S) -> int:
        with self.lock:
            end: int = run_steps(self.broker.world, self.host, self.broker.end(self.host, METADATA))
        return end

    def identity(self) -> str:
        raise NotImplementedError("the simulator makes no topic twice")

    def kafka_id(self) -> str:
        raise NotImplementedError("the simulator has one cluster of brokers")

    def verify(self) -> None:
        raise NotImplementedError("the simulator keeps every entry")

    def tail(self, from_offset: int) -> SimulatedTail:
        with self.lock:
            return SimulatedTail(self, from_offset)

    def close(self) -> None:
        """Do nothing; there is nothing to close."""
