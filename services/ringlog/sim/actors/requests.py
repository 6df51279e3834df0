"""Requests that nodes hold: ``ringlog.node.protocol.requests`` on virtual time."""

from __future__ import annotations

from typing import Any

from ringlog.node.protocol.requests import Hold
from ringlog.protocol.effects import Steps
from ringlog.sim.replica import Step, perform, wait_for
from ringlog.sim.world import Signal, SimWorld


def hold(world: SimWorld, changed: Signal, steps: Steps[Any]) -> Step:
    """Perform steps to their end. ``changed`` fires when a wait may be over."""
    return perform(steps, {}, {Hold: lambda effect: wait_for(effect.over, changed, world, effect.patience)})
