"""A story: additional actions of a profile's runs besides random faults and commands, as one row of a table.

A story is drawn from the seed alone, before the run, so it shrinks and replays like all other actions. Each draw has
its own ``Chance``, so a change of one story changes no other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ringlog.kernel.values import Micros, Value
from ringlog_sim.devices.world import Chance

AGENT_HOSTS: Final = ("agents-1", "agents-2")
OPERATOR, PRODUCER, WRITER, CONSUMER = "operator", "producer", "spark", "consumer"
OUTSIDER: Final = "outsider"
APPLICATIONS: Final = ("app-1", "app-2")

Drawn = tuple[Micros, str, tuple[Any, ...]]
"""Time of an action in microseconds, its name, and its arguments."""


class StorySetting(Value):
    """The run that a story is drawn for.

    ``founded``: number of the nodes that exist when the run begins. ``nodes``: names of these and of the nodes that
    join later.
    """

    seed: int
    profile: str
    founded: int
    nodes: tuple[str, ...]

    @property
    def readers(self) -> tuple[str, ...]:
        """Every host that reads the log, except the hosts of agents."""
        return (*self.nodes, WRITER, CONSUMER, PRODUCER, OPERATOR)

    def chance(self, name: str) -> Chance:
        """Return the random source of one draw."""
        return Chance(self.seed, name)


def always(_: int) -> bool:
    """Return True: every seed has the story."""
    return True


class Story(Value):
    """One row of the table.

    Args:
        first: number of its first action. The number seeds the action's draws, so stories share no numbers.
        lasts: minimum length of the run in microseconds.
        draw: function that returns its actions, or an empty list if the run does not have the story.
        faults_after: faults may begin until ``lasts``, so the run is longer by the longest fault.
        is_alone: a run with this story has none of the stories in ``ANYWHERE``.
        seeds: function that returns whether a seed may have the story.
        founded, factor: required number of initial nodes and replication factor. 0: any.
    """

    first: int
    lasts: Micros
    draw: Callable[[StorySetting], list[Drawn]]
    faults_after: bool = True
    is_alone: bool = False
    seeds: Callable[[int], bool] = always
    founded: int = 0
    factor: int = 0
