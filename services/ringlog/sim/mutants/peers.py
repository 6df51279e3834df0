"""Bugs in what nodes believe of the log because a peer says so."""

from __future__ import annotations

from ringlog.sim.hearsay import PROFILE
from ringlog.sim.mutants.plant import Mutant

HINTS, SIDE = "ringlog.node.hints", "ringlog.node.entries"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "peers_chain_not_checked",
        HINTS,
        "if made.outcome.kind is not OutcomeKind.APPLIED:",
        "if made.outcome.kind is OutcomeKind.UNREADABLE:",
        "a node takes a peer's entries that do not follow on what it knows",
        60,
        PROFILE,
    ),
    Mutant(
        "gap_skipped",
        SIDE,
        "found = found or self._recent().after(request.epoch, self._page_bytes)",
        "found = found or self._recent().after(max(request.epoch, self._recent().before), self._page_bytes)",
        "a peer that lacks entries gives the ones behind them",
        100,
        PROFILE,
    ),
    Mutant(
        "served_on_a_peers_word",
        "ringlog.sim.actors.peers",
        "        self._count(effect)\n",
        "        self.sim.shared['nodes'][self.node].holder.adopt(self.hints.newest(self._replica.state))\n",
        "a node serves a range that only a peer has shown it",
        20,
        PROFILE,
    ),
    Mutant(
        "acknowledged_on_a_peers_word",
        "ringlog.sim.actors.registers",
        "            seen = replica.state\n",
        "            seen = self.sim.shared['nodes'][self.node].peers.hints.newest(replica.state)\n",
        "the registers of a node adopt, on the disk, what only a peer has shown",
        60,
        PROFILE,
    ),
    Mutant(
        "copied_ids_believed",
        HINTS,
        "sha256(data).digest() != one.digest",
        "len(data) < 0",
        "an entry with the ids of another one counts as that one when the log shows it",
        60,
        PROFILE,
    ),
)
