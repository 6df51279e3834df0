"""The roles of agents, one row each.

Agents, supervisor, simulator, demo, status and clean-up read this table.

The protocol of a role is a module of this package. A role that only reads acknowledgements and submits requests needs
no other code. Any other role has a thread class in ``agents.roles``, and a worker in the simulator.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Final

from ringlog.kernel.sections import CHANGE_TOPICS, EPOCHS
from ringlog.kernel.values import Value
from ringlog.protocol.effects import Steps


class Role(Value):
    """The requirements of a role's agent.

    ``source``: the topic of the consumer group. The instance that gets its partition tries to become the active one.
    ``reset``: the start position of a new group. ``uses``: the other topics that the role cannot work without.
    ``is_optional``: a cluster works without the role, and a simulated cluster has it only if its script asks for it.
    ``steps``: the name of the coroutine in ``ringlog.protocol.<name>.<name>``, for a role that needs no other code;
    else empty. ``stores``: the role stores snapshots, archives the log, and writes the cache. ``confirms``: the role
    compares each snapshot with its own fold.
    """

    name: str
    source: str
    reset: str = "latest"
    uses: tuple[str, ...] = ()
    is_optional: bool = False
    steps: str = ""
    stores: bool = False
    confirms: bool = False

    def protocol(self) -> Callable[[], Steps[None]]:
        """Return the coroutine function of ``steps``. It serves one term."""
        assert self.steps, f"{self.name} has steps"
        module = importlib.import_module(f"ringlog.protocol.{self.name}.{self.name}")
        made: Callable[[], Steps[None]] = getattr(module, self.steps)
        return made


_ROWS: Final = (
    Role("validator", "requests", "earliest", ("results",)),
    Role("coordinator", "acks", "earliest", ("requests", "results", EPOCHS), confirms=True),
    Role("publisher", "metadata", uses=("schemas", *CHANGE_TOPICS), confirms=True),
    Role("keeper", "metadata", stores=True),
    Role("balancer", "load", "earliest", ("requests", "results"), is_optional=True),
    Role("rebalancer", "acks", "earliest", ("requests", "results"), is_optional=True, steps="rebalance"),
)

ROLES: Final = {role.name: role for role in _ROWS}
"""Roles by name, in the order of their start."""
