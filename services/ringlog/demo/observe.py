"""Looking at a run from outside: the producer's lines, the CDC job's progress file, the nodes' acknowledgements."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from ringlog.kernel.state import ClusterState
from ringlog.log.topics import topic_name
from ringlog.runtime.context import Context
from ringlog.wire.errors import WireError
from ringlog.wire.records import NodeAck, decode_node_ack


class _JsonLines:
    """A file that grows by JSON lines; a line that is not whole yet waits."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def fresh(self) -> list[dict[str, Any]]:
        """The objects added since the last call; lines that are no JSON objects are passed over."""
        try:
            with self._path.open("rb") as source:
                source.seek(self._offset)
                data = source.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        found = []
        for line in whole.splitlines():
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                found.append(value)
        return found


class LoadProgress:
    """How far the producer is: ``phase`` is sending, slow, rest, done or failed."""

    def __init__(self, path: Path) -> None:
        self._lines = _JsonLines(path)
        self.phase = ""
        self.acknowledged = 0

    def refresh(self) -> None:
        """Read what is new."""
        for line in self._lines.fresh():
            if "phase" not in line:
                continue
            self.acknowledged = int(line["acknowledged"])
            if line["phase"] != "sending" or self.phase == "":
                self.phase = str(line["phase"])


class CdcProgress:
    """How far the CDC job is, from its ``progress.jsonl``."""

    def __init__(self, path: Path) -> None:
        self._lines = _JsonLines(path)
        self.written = 0
        self.rejected = 0
        self.batches = 0
        self.waiting = ""
        self._busy_s = 0.0
        self.by_generation: dict[int, int] = {}
        """Generation timestamp to number of batches that wrote rows under it."""

    @property
    def rows_per_second(self) -> float:
        """Rows over the time in which batches ran."""
        return (self.written + self.rejected) / self._busy_s if self._busy_s else 0.0

    def refresh(self) -> None:
        """Read what is new."""
        for line in self._lines.fresh():
            self.waiting = str(line.get("waiting") or "")
            if line.get("event") != "batch":
                continue
            self.batches += 1
            self.written += int(line["written"])
            self.rejected += sum(int(count) for count in line["rejected"].values())
            self._busy_s += float(line["seconds"])
            for generation in line["generations"]:
                stamp = int(generation)
                self.by_generation[stamp] = self.by_generation.get(stamp, 0) + 1


class Acks:
    """The last acknowledgement of every node, from the acks topic."""

    def __init__(self, context: Context) -> None:
        self._topic = topic_name(context.cluster, "acks")
        self._consumer = Consumer(
            {
                "bootstrap.servers": context.bootstrap,
                "group.id": f"{context.cluster}.demo",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        self.latest: dict[str, NodeAck] = {}

    def __enter__(self) -> Acks:
        low, _ = self._consumer.get_watermark_offsets(TopicPartition(self._topic, 0), timeout=10)
        self._consumer.assign([TopicPartition(self._topic, 0, low)])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    def by_name(self, state: ClusterState) -> dict[str, tuple[int, int]]:
        """Node name to (epoch acknowledged, rows held)."""
        for message in self._consumer.consume(500, 0):
            value = message.value()
            if message.error() is not None or value is None:
                continue
            try:
                ack = decode_node_ack(value)
            except WireError:
                continue
            self.latest[ack.node] = ack
        return {state.nodes[n].name: (a.applied, a.rows) for n, a in self.latest.items() if n in state.nodes}
