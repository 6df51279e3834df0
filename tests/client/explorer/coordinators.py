"""Coordinators of the explored requests: they decide whether the answers of nodes are enough for any possible
coordinator.
"""

from __future__ import annotations

from ringlog.client.data import plans
from ringlog.client.data.plans import Access, Answer, ClientRequest, Level, RequestPlan, Satisfied, request_of
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Value
from ringlog.wire.data import Key

WRITE, READ = 1, 2
"""Turns of a request: first the write, then the read. A first read counts as a write."""
FIRST_READ = 3
RegisterResult = tuple[tuple[tuple[int, str], ...], ...]
"""The answers of each node in this turn: (position in the log, written, found or empty)."""


class Scenario(Value):
    """One explored case. ``log``: the states, oldest first; the explorer drops states that do not concern ``key``.

    ``mistaken``: nodes that are declared down still run. ``is_read_first``: the write may not be complete, but a first
    read found and returned its value. ``keeps_others``: the explorer distinguishes stages of operations that do not
    touch the key. ``reads_from``: no coordinator reads on a state below this epoch. ``counts_from``: successes before
    this epoch belong to a dropped namesake and do not count.
    """

    log: tuple[ClusterState, ...]
    key: Key
    write: Level = Level.QUORUM
    read: Level = Level.QUORUM
    datacenter: str = "dc1"
    mistaken: bool = False
    is_read_first: bool = False
    keeps_others: bool = False
    rows_travel: bool = False
    restarts: int = 1
    reads_from: int = 0
    counts_from: int = 0


class Coordinators:
    """All possible coordinators of a scenario. ``log``: the distinct states; ``nodes``: the nodes that a coordinator
    may ask.
    """

    def __init__(self, scenario: Scenario, log: list[ClusterState], nodes: list[str]) -> None:
        self.scenario = scenario
        self.log = log
        self.nodes = nodes
        self.key = scenario.key
        requests = {
            turn: request_of(self.key, access, level, scenario.datacenter)
            for turn, access, level in (
                (WRITE, Access.WRITE, scenario.write),
                (READ, Access.READ, scenario.read),
                (FIRST_READ, Access.READ, scenario.read),
            )
        }
        self.plans = {turn: [self._plan(turn, state, one) for state in self.log] for turn, one in requests.items()}

    def _plan(self, turn: int, state: ClusterState, request: ClientRequest) -> RequestPlan | plans.Failed:
        if turn == READ and state.epoch < self.scenario.reads_from:
            return plans.Failed("too_early", "nobody reads yet")
        return plans.plan(state, request)

    def is_done(self, length: int, turn: int, told: RegisterResult) -> bool:
        """Return whether a coordinator may report a success, with ``length`` states in the log."""
        if not any(told):
            return False
        if turn == READ:
            return self._counts(length, READ, self._answers(READ, told, ("empty",)))
        if not self.scenario.is_read_first:
            return self._counts(length, WRITE, self._answers(WRITE, told, ("written",)))
        if not any(what == "found" for answers in told for _, what in answers):
            return False
        repaired = self._answers(WRITE, told, ("written", "found"))
        return self._counts(length, WRITE, repaired) or self._needs_no_repair(length, told)

    def _answers(self, turn: int, told: RegisterResult, kinds: tuple[str, ...]) -> list[tuple[int, Answer]]:
        """Return (first position in the log at which the node may have been asked, answer)."""
        first = {
            node: next((i for i, p in enumerate(self.plans[turn]) if isinstance(p, RequestPlan) and node in p.asked), 0)
            for node in self.nodes
        }
        return [
            (first[node], Answer(node, self.log[index].epoch))
            for node, answers in zip(self.nodes, told, strict=True)
            for index, what in answers
            if what in kinds
        ]

    def _counts(self, length: int, turn: int, answers: list[tuple[int, Answer]]) -> bool:
        """Return whether the answers are enough for a coordinator on any of the states."""
        for known in range(length):
            if self.log[known].epoch < self.scenario.counts_from:
                continue
            heard = [answer for asked, answer in answers if asked <= known]
            for made in self.plans[turn][: known + 1]:
                if not heard or not isinstance(made, RequestPlan):
                    continue
                if isinstance(plans.count(made, heard, self.log[known]), Satisfied):
                    return True
        return False

    def _needs_no_repair(self, length: int, told: RegisterResult) -> bool:
        """Return whether a coordinator on some state returns the value without a repair."""
        for known in range(length):
            now = self.plans[FIRST_READ][known]
            everything = self._answers(FIRST_READ, told, ("found", "empty"))
            heard = [answer for asked, answer in everything if asked <= known]
            if not heard or not isinstance(now, RequestPlan):
                continue
            if not isinstance(plans.count(now, heard, self.log[known]), Satisfied):
                continue
            found = [answer for _, answer in self._answers(FIRST_READ, told, ("found",)) if plans.counts(now, answer)]
            if found and plans.repair(now, found, self.log[known]) is None:
                return True
        return False
