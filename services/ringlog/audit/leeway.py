"""How far from its append time a write's timestamp may lie, at each epoch: read from the metadata log itself.

The publisher names the newest state; from there the entries lead back to the founding one, each naming the state before
it. Those are the entries that count, one an epoch: an author that lost a race, and a command that was refused, made
states that nothing follows. Of them only founding and settings are looked into.

Which leeway counts: behind the start of a generation that of its commit; ahead of now that of the epoch at which the
write was judged. A dead letter tells that epoch. A row does not: its write was judged some time after it was appended,
so it may be there if any leeway since then lets it in.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import fastavro

from ringlog.audit.topics import AuditError, Decoder, latest, records

DEFAULT_US = 5_000_000
NAME = "cdc_leeway_us"
SETTERS = ("InitializeCluster", "ChangeSettings")
SKEW_US = 60_000_000
"""Clocks of authors and brokers may be so far apart."""


@dataclass(frozen=True, slots=True)
class Step:
    """The setting from ``epoch`` on, written at ``at`` by its author's clock; microseconds."""

    epoch: int
    at: int
    leeway: int


@dataclass(frozen=True, slots=True)
class Leeways:
    """``steps``: by ascending epoch, the first one from the beginning on."""

    steps: tuple[Step, ...]

    def at_epoch(self, epoch: int) -> int:
        """The leeway in force at an epoch."""
        return next((step.leeway for step in reversed(self.steps) if step.epoch <= epoch), self.steps[0].leeway)

    def widest(self, now: int) -> int:
        """The greatest leeway that was in force at ``now`` or later."""
        earlier = (step for step, after in pairwise(self.steps) if after.at > now - SKEW_US)
        return max(step.leeway for step in (*earlier, self.steps[-1]))


def always(leeway: int) -> Leeways:
    """One leeway that never changed."""
    return Leeways((Step(0, 0, leeway),))


def published_leeways(bootstrap: str, cluster: str, decoder: Decoder) -> Leeways:
    """What the metadata log says; raises AuditError if it does not lead from the published state to its founding."""
    # The head first: the cluster goes on meanwhile, and what is published later is not in the log that was read.
    heads = [decoder.decode(value) for value in latest(bootstrap, f"{cluster}.epochs").values()]
    if not heads:
        raise AuditError(f"nothing is published in {cluster}.epochs: is the publisher running?")
    entries = {}
    for message in records(bootstrap, f"{cluster}.metadata"):
        try:
            entry = decoder.decode(message.value() or b"")
        except AuditError:
            continue  # bytes that are no entry make no state
        entries[entry["state_id"]] = entry
    return leeways_of(chain(entries, heads[0]["epoch"], bytes.fromhex(heads[0]["state_id"].replace("-", ""))), decoder)


def chain(entries: dict[bytes, dict[str, Any]], epoch: int, head: bytes | None) -> list[dict[str, Any]]:
    """The entries that made the epochs from 1 to ``epoch``, whose state is ``head``."""
    found: list[dict[str, Any]] = []
    while head is not None:
        if head not in entries or len(found) == epoch:
            raise AuditError(f"the metadata log does not lead from epoch {epoch} to the founding entry")
        found.append(entries[head])
        head = entries[head]["prev_state_id"]
    if len(found) != epoch:
        raise AuditError(f"epoch {epoch} is published, and {len(found)} entries lead to it")
    return found[::-1]


def leeways_of(entries: Iterable[dict[str, Any]], decoder: Decoder) -> Leeways:
    """The steps of the setting in the entries of all epochs from 1 on."""
    steps = [Step(0, 0, DEFAULT_US)]
    for epoch, entry in enumerate(entries, start=1):
        if entry["kind"] in SETTERS:
            schema = decoder.named(f"ringlog.commands.{entry['kind']}", entry["version"])
            command: Any = fastavro.schemaless_reader(io.BytesIO(entry["command"]), schema, None)
            steps += [Step(epoch, entry["at"], one["value"]) for one in command["settings"] if one["name"] == NAME]
    return Leeways(tuple(steps))
