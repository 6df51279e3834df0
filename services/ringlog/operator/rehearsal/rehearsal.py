"""A rehearsal: the commands of a plan run offline, on an in-memory log with a manual clock and repeatable random bits.

The fold, the authoring and the coordinator are those of the running system. Only the broker, the clock and the nodes
are replaced: every node acknowledges at once, change topics are published at once, and no rows are streamed. Invariant:
equal lines give equal answers, byte for byte. If the first command is not InitializeCluster, a cluster is created in
epoch 1.

Two outcomes are refusals. ``invalid``: this release has no such command, show or do, or the line has an unknown field.
``rejected``: the command is valid, but the state does not allow it. ``as`` names the principal that sends a command;
then its roles count.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, Final

from ringlog.kernel.authorization import authorize
from ringlog.kernel.balance.reports import Reports
from ringlog.kernel.commands.cluster.cluster import InitializeCluster
from ringlog.kernel.commands.topology.operations import AdvanceOperation
from ringlog.kernel.fold import fold
from ringlog.kernel.generations.acceptance import generation_at, stream_of
from ringlog.kernel.model.outcome import Outcome, OutcomeKind, Rejected
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.kernel.operations.gates import REPORTED_STAGES, gaining_nodes
from ringlog.kernel.operations.stages import in_flight, is_ended
from ringlog.kernel.tablets.mutual_exclusion import is_draining
from ringlog.kernel.values import Command, StreamReport, is_token
from ringlog.log.author import Author
from ringlog.operator import plans
from ringlog.operator.intents.intents import InvalidCommand
from ringlog.operator.intents.json_commands import from_json
from ringlog.operator.rehearsal import tablets as rehearsed_tablets
from ringlog.operator.rehearsal import zones as rehearsed_zones
from ringlog.operator.rehearsal.balance_history import BalanceHistory
from ringlog.operator.views import views
from ringlog.protocol.coordinator.core import CoordinatorView, propose
from ringlog.protocol.coordinator.tablet_steps import tablet_reports
from ringlog.runtime.clock import ManualClock
from ringlog.runtime.draw import SeededDraw
from ringlog.wire.errors import WireError
from ringlog.wire.records import NodeAck

Json = dict[str, Any]
CLUSTER = "rehearsal"
STEPS_MAX = 1_000
NO_ROWS = hashlib.sha256().hexdigest()
"""The checksum of no rows, because a rehearsal streams none."""


class Invalid(Exception):
    """A line that is not a command, show or do of this release."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


_TABLET_LINES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "place": (("table", "replicas"), ("table", "replicas")),
    "report": (("node", "capacity", "sizes"), ("node", "capacity")),
    "plan": ((), ()),
    "balance": (("table",), ()),
    "resize": ((), ()),
}
"""The allowed fields and the required fields of each line about tablets."""

_OPTIONAL: Final = {"stream": ("table",)}
"""The optional fields of ``show`` lines."""


class Rehearsal:
    """A state, and the lines that change and show it. ``balance_history``: the tablets at each epoch."""

    def __init__(self, state: ClusterState = EMPTY_STATE) -> None:
        self.state = state
        self.balance_history = BalanceHistory()
        self.clock = ManualClock(max(state.time, 1_700_000_000_000_000))
        self._draw = SeededDraw(b"rehearsal")
        self._author = Author("rehearsal", self.clock, self._draw)
        self._reports = Reports()

    def line(self, text: str | bytes, number: int) -> Json:
        """Return the answer to line ``number``, counted from 1."""
        try:
            return self._answer(_parsed(text))
        except Invalid as invalid:
            return {"outcome": "invalid", "line": number, "code": invalid.code, "detail": str(invalid)}

    def _answer(self, value: Json) -> Json:
        if "show" in value:
            return self._show(value)
        if "do" in value:
            return self._do(value)
        return self._command(value)

    # ------------------------------------------------------------------------------------------ commands

    def _command(self, value: Json) -> Json:
        if self.state.epoch == 0 and value.get("command") != "InitializeCluster":
            self._apply(InitializeCluster(CLUSTER))
        sender = _text(value, "as") if "as" in value else None
        command = from_json(self.state, {name: one for name, one in value.items() if name != "as"}, self._draw)
        if isinstance(command, InvalidCommand):
            raise Invalid(command.code, command.detail)
        if sender is not None and (refused := authorize(self.state, sender, command)) is not None:
            return self._rejected(refused.code, refused.detail)
        outcome = self._apply(command, sender)
        if outcome.kind is not OutcomeKind.APPLIED:
            return self._rejected(outcome.code, outcome.detail)
        begun = [op.id for op in self.state.operations.values() if op.marks[0].epoch == outcome.epoch]
        return {"outcome": "applied", "epoch": outcome.epoch} | ({"operation": begun[0]} if begun else {})

    def _rejected(self, code: str, detail: str) -> Json:
        return {"outcome": "rejected", "epoch": self.state.epoch, "code": code, "detail": detail}

    def _apply(self, command: Command, sender: str | None = None) -> Outcome:
        try:
            entry = self._author.entry(self.state, command, submitter=sender).entry
        except WireError as error:
            raise Invalid("bad_field", str(error)) from None
        folded = fold(self.state, entry)
        self.state = folded.state
        self._record_history()
        return folded.outcome

    def _record_history(self) -> None:
        self.balance_history.add_reports(self._reports, self.state)
        self.balance_history.add_state(self.state.epoch, self.state)

    # ---------------------------------------------------------------------------------------------- show

    def _show(self, value: Json) -> Json:
        shows: dict[str, tuple[tuple[str, ...], Callable[[Json], Json]]] = {
            "placements": (("keyspace",), self._placements),
            "nodes": ((), lambda _: {"nodes": views.nodes(self.state)}),
            "features": ((), lambda _: {"features": views.features(self.state)}),
            "service": ((), lambda _: views.service(self.state)),
            "principals": ((), lambda _: {"principals": views.principals(self.state)}),
            "plans": ((), lambda _: plans.plans(self.state)),
            "recoveries": ((), lambda _: {"recoveries": views.recoveries(self.state)}),
            "operations": ((), lambda _: {"operations": views.operations(self.state)}),
            "schema": ((), lambda _: views.schema(self.state)),
            "cdc": ((), lambda _: views.cdc(self.state)),
            "settings": ((), lambda _: views.settings(self.state)),
            "locks": ((), lambda _: {"locks": views.locks(self.state)}),
            "stream": (("token", "at"), self._stream),
            "tablets": (("table",), self._tablets),
            "zone": (("zone",), self._zone),
        }
        wanted = value["show"]
        if not isinstance(wanted, str) or wanted not in shows:
            raise Invalid("unknown_command", f"show {wanted!r}: this release shows {', '.join(sorted(shows))}")
        names, answer = shows[wanted]
        self._check_fields(value, ("show", *names, *_OPTIONAL.get(wanted, ())), names)
        return answer(value)

    def _placements(self, value: Json) -> Json:
        keyspace = _text(value, "keyspace")
        found = views.placements(self.state, keyspace)
        return (
            found
            if found is not None
            else self._rejected("unknown_keyspace", f"the keyspace {keyspace} does not exist")
        )

    def _tablets(self, value: Json) -> Json:
        found = rehearsed_tablets.shown_tablets(self.state, _text(value, "table"))
        return self._rejected(found.code, found.detail) if isinstance(found, Rejected) else found

    def _zone(self, value: Json) -> Json:
        found = rehearsed_zones.shown_zone(self.state, _text(value, "zone"))
        return self._rejected(found.code, found.detail) if isinstance(found, Rejected) else found

    def _stream(self, value: Json) -> Json:
        token, at = _whole(value, "token"), _whole(value, "at")
        if not is_token(token):
            raise Invalid("bad_field", f"token: {token} is not a token")
        name = _text(value, "table") if "table" in value else ""
        table = self.state.tables.get(name)
        if name and table is None:
            return self._rejected("unknown_table", f"the table {name} does not exist")
        generation = generation_at(self.state.generations, at)
        if generation is None:
            first = self.state.generations[0].timestamp if self.state.generations else None
            why = "there is no CDC generation" if first is None else f"the first CDC generation starts at {first}"
            return {"stream": None, "code": "no_generation", "detail": why}
        if not generation.ranges:
            why = f"{generation.id} was active then. It expired, and its streams are pruned"
            return {"stream": None, "code": "generation_expired", "detail": why}
        return {
            "stream": stream_of(generation, token, "" if table is None else table.id).hex(),
            "generation": generation.id,
            "timestamp": generation.timestamp,
        }

    # ------------------------------------------------------------------------------------------------ do

    def _do(self, value: Json) -> Json:
        match value["do"]:
            case "step" | "finish" as verb:
                self._check_fields(value, ("do", "operation"), ())
                return self._drive(value, to_end=verb == "finish")
            case "advance_clock":
                self._check_fields(value, ("do", "seconds"), ("seconds",))
                seconds = value["seconds"]
                if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= 1e9:
                    raise Invalid("bad_field", "seconds: expected a number from 0 to 1e9")
                self.clock.advance(seconds)
                return {"done": "advance_clock", "epoch": self.state.epoch, "stages": []}
            case "switch":
                self._check_fields(value, ("do", "zone", "partition"), ("zone",))
                number = _whole(value, "partition") if "partition" in value else None
                zone, following = _text(value, "zone"), (self._apply, self._finish_transitions)
                done = rehearsed_zones.switched(lambda: self.state, zone, number, *following)
                return self._rejected(done.code, done.detail) if isinstance(done, Rejected) else done
            case "place" | "report" | "plan" | "balance" | "resize" as verb:
                allowed, needed = _TABLET_LINES[verb]
                self._check_fields(value, ("do", *allowed), needed)
                try:
                    return self._do_tablets(verb, value)
                except rehearsed_tablets.BadField as bad:
                    raise Invalid("bad_field", str(bad)) from None
            case other:
                verbs = "step, finish, advance_clock, switch, place, report, plan, balance and resize"
                raise Invalid("unknown_command", f"do {other!r}: this release does {verbs}")

    def _do_tablets(self, verb: str, value: Json) -> Json:
        """Place tablets, add a load report, or run the balancer's plan or resizes."""
        done: Json = {"done": verb, "epoch": self.state.epoch}
        if verb == "place":
            state = rehearsed_tablets.placed(self.state, _text(value, "table"), value["replicas"])
            if isinstance(state, Rejected):
                return self._rejected(state.code, state.detail)
            self.state = state
            self._record_history()
            return done
        if verb == "report":
            reports = rehearsed_tablets.reported(self.state, self._reports, value, self.clock.now_us())
            if isinstance(reports, Rejected):
                return self._rejected(reports.code, reports.detail)
            self._reports = reports
            self._record_history()
            return done
        if verb == "plan":
            return rehearsed_tablets.planned(self.state, self._reports)
        if verb == "resize":
            answer = rehearsed_tablets.resized(
                lambda: self.state, self._reports, self._accepted, self._finish_transitions
            )
            return answer | {"epoch": self.state.epoch}
        tables = frozenset([_text(value, "table")]) if "table" in value else None
        if tables is not None and value["table"] not in self.state.tablets:
            return self._rejected("no_tablets", f"{value['table']} has no tablets of its own")
        answer, self._reports = rehearsed_tablets.balanced(
            lambda: self.state, self._reports, tables, self._accepted, self._finish_transitions
        )
        return answer | {"epoch": self.state.epoch}

    def _accepted(self, command: Command) -> bool:
        return self._apply(command).kind is OutcomeKind.APPLIED

    def _finish_transitions(self) -> None:
        """Complete all tablet transitions; operations stay in their stages."""
        for _ in range(STEPS_MAX):
            if not self._coordinate(set()):
                return

    def _drive(self, value: Json, *, to_end: bool) -> Json:
        """Advance operations, with every node acknowledging at once, and return the stages that they entered, in order.

        ``finish`` without an operation also completes other work of the coordinator, such as a requested generation. A
        leaving node is drained by the balancer's plans.
        """
        wanted = _text(value, "operation") if "operation" in value else None
        if wanted is not None and wanted not in self.state.operations:
            return self._rejected("unknown_operation", f"the operation {wanted} does not exist")
        goals = [op.id for op in in_flight(self.state) if wanted in (None, op.id)]
        if wanted is None and not to_end and not goals:
            self._coordinate(set())  # Without operations, a step changes only the metadata service or a generation.
        begun = {name: len(self.state.operations[name].marks) for name in goals}
        until_quiet = to_end and wanted is None
        for _ in range(STEPS_MAX):
            still = {name for name in goals if not self._arrived(name, begun[name], to_end)}
            if (not still and not until_quiet) or not (self._coordinate(still) or (to_end and self._drain(still))):
                break
        stages = [mark.stage for name in goals for mark in self.state.operations[name].marks[begun[name] :]]
        return {"done": value["do"], "epoch": self.state.epoch, "stages": stages}

    def _arrived(self, name: str, marks: int, to_end: bool) -> bool:
        operation = self.state.operations[name]
        return is_ended(operation) or (not to_end and len(operation.marks) > marks)

    def _drain(self, goals: set[str]) -> bool:
        """Run one plan of the balancer if an operation of ``goals`` waits for a drain. Return whether it changed
        anything.
        """
        if not any(is_draining(self.state, self.state.operations[name]) for name in goals):
            return False
        reports = rehearsed_tablets.moved_on(
            lambda: self.state, self._reports, self._accepted, self._finish_transitions
        )
        self._reports = reports or self._reports
        return reports is not None

    def _coordinate(self, goals: set[str]) -> bool:
        """Run one round of the coordinator with all nodes acknowledging. Only the operations ``goals`` advance.

        Returns True if a command was applied.
        """
        now = self.clock.now_us()
        allowed = CoordinatorView(self.state, acknowledgements(self.state, now), self.state.epoch, now)
        commands = [proposal.command for proposal in propose(allowed)]
        wanted = [one for one in commands if not isinstance(one, AdvanceOperation) or one.operation in goals]
        applied = [self._apply(command).kind is OutcomeKind.APPLIED for command in wanted]
        return any(applied)

    @staticmethod
    def _check_fields(value: Json, allowed: tuple[str, ...], needed: tuple[str, ...]) -> None:
        for name in sorted(value):
            if name not in allowed:
                raise Invalid("unknown_field", f"{name}: expected {', '.join(allowed)}")
        for name in needed:
            if name not in value:
                raise Invalid("missing_field", f"{name} is missing")


def _parsed(text: str | bytes) -> Json:
    """Return the JSON object of a line. NaN and Infinity, which Python accepts, are refused."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not valid JSON")

    try:
        value = json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise Invalid("bad_json", str(error)) from None
    if not isinstance(value, dict):
        raise Invalid("bad_json", "expected a JSON object")
    return value


def _text(value: Json, name: str) -> str:
    found = value[name]
    if not isinstance(found, str):
        raise Invalid("bad_field", f"{name}: expected text")
    return found


def _whole(value: Json, name: str) -> int:
    found = value[name]
    if isinstance(found, bool) or not isinstance(found, int):
        raise Invalid("bad_field", f"{name}: expected a whole number")
    return found


def acknowledgements(state: ClusterState, at: int) -> dict[str, NodeAck]:
    """Return the acknowledgements of healthy nodes: the newest epoch applied, and all rows streamed."""
    streaming = [op for op in in_flight(state) if op.stage in REPORTED_STAGES]
    return {
        node: NodeAck(
            cluster_id=state.cluster_id,
            node=node,
            incarnation="rehearsal",
            applied=state.epoch,
            drained=state.epoch,
            reports=(
                *(StreamReport(node, op.id, 0, NO_ROWS) for op in streaming if node in gaining_nodes(op)),
                *tablet_reports(state, node),
            ),
            rows=0,
            at=at,
            state_id=state.state_id,
        )
        for node in state.nodes
    }
