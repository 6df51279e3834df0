"""How far from its append time a write's timestamp may lie, at each epoch: read from the entries of the metadata log
(``history``). Of them only founding and settings are looked into.

Which leeway counts: behind the start of a generation that of its commit; ahead of now that of the epoch at which the
write was judged. A dead letter tells that epoch. A row does not: its write was judged some time after it was appended,
so it may be there if any leeway since then lets it in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ringlog.audit.history import command_of
from ringlog.audit.topics import Decoder

DEFAULT_US = 5_000_000
NAME = "cdc_leeway_us"
SETTERS = ("InitializeCluster", "ChangeSettings")
SKEW_US = 60_000_000
"""Clocks of authors and brokers may be so far apart."""


@dataclass(frozen=True, slots=True)
class LeewayStep:
    """The setting from ``epoch`` on, written at ``at`` by its author's clock; microseconds."""

    epoch: int
    at: int
    leeway: int


@dataclass(frozen=True, slots=True)
class Leeways:
    """``steps``: by ascending epoch, the first one from the beginning on."""

    steps: tuple[LeewayStep, ...]

    def at_epoch(self, epoch: int) -> int:
        """The leeway in force at an epoch."""
        return next((step.leeway for step in reversed(self.steps) if step.epoch <= epoch), self.steps[0].leeway)

    def widest(self, now: int) -> int:
        """The greatest leeway that was in force at ``now`` or later."""
        earlier = (step for step, after in pairwise(self.steps) if after.at > now - SKEW_US)
        return max(step.leeway for step in (*earlier, self.steps[-1]))


def always(leeway: int) -> Leeways:
    """One leeway that never changed."""
    return Leeways((LeewayStep(0, 0, leeway),))


def leeways_of(entries: Iterable[dict[str, Any]], decoder: Decoder) -> Leeways:
    """The steps of the setting in the entries of all epochs from 1 on."""
    steps = [LeewayStep(0, 0, DEFAULT_US)]
    for epoch, entry in enumerate(entries, start=1):
        if entry["kind"] in SETTERS:
            command = command_of(entry, decoder)
            steps += [
                LeewayStep(epoch, entry["at"], one["value"]) for one in command["settings"] if one["name"] == NAME
            ]
    return Leeways(tuple(steps))
