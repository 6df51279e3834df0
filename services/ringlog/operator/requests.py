"""Reads and writes as JSON: the plan, the epochs, and who answered."""

from __future__ import annotations

from typing import Any

from ringlog.client.plans import RequestPlan
from ringlog.client.protocol import Told
from ringlog.client.row_reads import FoundPartition
from ringlog.kernel.state import ClusterState
from ringlog.operator.shown import picked
from ringlog.operator.views import name_of


def text_of(value: bytes, as_hex: bool) -> str:
    """A value as text, or as hex digits."""
    return value.hex() if as_hex else value.decode(errors="backslashreplace")


def done(state: ClusterState, told: Told, as_hex: bool) -> dict[str, Any]:
    """A success as JSON; nodes by name."""
    cell = told.cell
    return {
        "value": None if cell is None or cell.deleted else text_of(cell.value, as_hex),
        "timestamp": None if cell is None else cell.timestamp,
        "deleted": cell is not None and cell.deleted,
        **about(state, told),
    }


def about(state: ClusterState, told: Told | FoundPartition) -> dict[str, Any]:
    """What a success went by."""
    return {
        "epoch": told.epoch,
        "plan": _plan(state, told.plan),
        "answers": [{"node": name_of(state, answer.node), "epoch": answer.epoch} for answer in told.answers],
        "attempts": told.attempts,
        "repair": None if told.repair is None else _plan(state, told.repair),
    }


def _plan(state: ClusterState, plan: RequestPlan) -> dict[str, Any]:
    return {
        **picked(plan.request, "level", "token"),
        **picked(plan, "epoch", "changed"),
        "asked": [name_of(state, node) for node in plan.asked],
        "needs": [
            picked(need, "group", "datacenter", "count") | {"of": [name_of(state, node) for node in need.members]}
            for need in plan.needs
        ],
    }
