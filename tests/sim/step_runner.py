"""Run simulator steps outside of the processes of a simulated world."""

from __future__ import annotations

from typing import Any

from ringlog_sim.devices.world import SECOND, SimHost, SimWorld, Work

PATIENCE_US = 60 * SECOND


def run_steps(world: SimWorld, host: SimHost, steps: Work) -> Any:
    """Run ``steps`` on ``host`` to their end in virtual time; return their result or raise their exception."""
    given: list[Any] = []
    raised: list[Exception] = []

    def run() -> Work:
        try:
            given.append((yield from steps))
        except Exception as error:
            raised.append(error)

    world.spawn(host, "test", run())
    assert world.run(world.now + PATIENCE_US, lambda: bool(given or raised)), "the steps never end"
    if raised:
        raise raised.pop()
    return given.pop()
