"""Progress of a run as seen from outside.

The sources are the producer's output, the CDC job's progress file, and the tablets of ``fleet.by_plane``.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.tablets.mutual_exclusion import transitions
from ringlog_demo.flights import FLEET, TABLE


class _JsonLines:
    """A growing file of JSON lines. An incomplete last line is left for the next read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def fresh(self) -> list[dict[str, Any]]:
        """Return the objects added since the last call. Lines that are not JSON objects are skipped."""
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
    """The producer's progress. ``phase`` is sending, slow, rest, done or failed."""

    def __init__(self, path: Path) -> None:
        self._lines = _JsonLines(path)
        self.phase = ""
        self.acknowledged = 0

    def refresh(self) -> None:
        """Read the new lines."""
        for line in self._lines.fresh():
            if "phase" not in line:
                continue
            self.acknowledged = int(line["acknowledged"])
            if line["phase"] != "sending" or self.phase == "":
                self.phase = str(line["phase"])


class CdcProgress:
    """The CDC job's progress, read from its ``progress.jsonl``."""

    def __init__(self, path: Path) -> None:
        self._lines = _JsonLines(path)
        self.written = 0
        self.rejected = 0
        self.batches = 0
        self.waiting = ""
        self.held_s = 0.0
        self._busy_s = 0.0
        self.by_generation: dict[int, int] = {}
        """Timestamp of a generation to the number of batches that wrote rows to it."""

    @property
    def rows_per_second(self) -> float:
        """Return the rows per second while batches ran."""
        return (self.written + self.rejected) / self._busy_s if self._busy_s else 0.0

    def refresh(self) -> None:
        """Read the new lines."""
        for line in self._lines.fresh():
            if line.get("event") == "held":
                self.waiting = str(line.get("waits_for", "the horizon"))
            if line.get("event") != "batch":
                continue
            self.waiting = ""
            self.batches += 1
            self.written += int(line["written"])
            self.rejected += sum(int(count) for count in line["rejected"].values())
            self.held_s += int(line["held_ms"]) / 1000
            self._busy_s += (int(line["duration_ms"]) - int(line["held_ms"])) / 1000
            for generation in line["generations"]:
                stamp = int(generation)
                self.by_generation[stamp] = self.by_generation.get(stamp, 0) + 1


def tablets_by_node(state: ClusterState) -> dict[str, int]:
    """Return the number of tablet replicas on each normal node, by node name."""
    found = state.tablets.get(f"{FLEET}.{TABLE}")
    held = Counter() if found is None else Counter(one.node for tablet in found for one in tablet.replicas)
    return {node.name: held[node.id] for node in state.nodes.values() if node.state == "normal"}


def rests(state: ClusterState) -> bool:
    """Return True while no tablet is migrating."""
    return next(transitions(state), None) is None


def is_spread(state: ClusterState, nodes: int) -> bool:
    """Return True if at least ``nodes`` nodes have tablets, each at least half of an even share, and none is migrating.

    Half a share is enough because the balancer counts bytes, not tablets.
    """
    held = tablets_by_node(state).values()
    return len(held) >= nodes and min(held) * len(held) * 2 >= sum(held) > 0 and rests(state)
