"""Steps of the simulator, performed by whoever is no process of its world."""

from __future__ import annotations

from typing import Any

from ringlog_sim.devices.world import SECOND, SimHost, SimWorld, Work

PATIENCE_US = 60 * SECOND


def run_steps(world: SimWorld, host: SimHost, steps: Work) -> Any:
    """Perform ``steps`` on ``host`` to their end; virtual time passes. Gives what they give, raises what they raise."""
    given: list[Any] = []
    raised: list[Exception] = []

    def run() -> Work:
        try:
            given.append((yield from steps))
        except Exception as error:
            raised.append(error)

    world.spawn(host, "test", run())
    assert world.run(world.now + PATIENCE_US, lambda: bool(given or raised)), "steps that never end"
    if raised:
        raise raised.pop()
    return given.pop()
