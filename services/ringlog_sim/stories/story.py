"""A story: what runs of a profile have besides random faults and commands, as one row of a table.

A story is drawn from the seed alone, before the run, so it shrinks and replays like all other actions. Each draw has a
``Chance`` of its own, so a change of one story changes no other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ringlog.kernel.values import Micros
from ringlog_sim.devices.world import Chance

AGENT_HOSTS: Final = ("agents-1", "agents-2")
OPERATOR, PRODUCER, WRITER, CONSUMER = "operator", "producer", "spark", "consumer"
OUTSIDER: Final = "outsider"
APPLICATIONS: Final = ("app-1", "app-2")

Drawn = tuple[Micros, str, tuple[Any, ...]]
"""Time of an action in microseconds, its name, and its arguments."""


@dataclass(frozen=True, slots=True)
class StorySetting:
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
    """Every seed has the story."""
    return True


@dataclass(frozen=True, slots=True)
class Story:
    """One row of the table.

    Args:
        first: number of its first action. Actions draw from their numbers, so no two stories share any.
        lasts: the run goes on for this long, in microseconds.
        draw: its actions. An empty list means that the run does not have it.
        faults_after: faults may begin until ``lasts``, so the run goes on for the longest fault after it.
        is_alone: a run that has it has none of the stories that any run may have.
        seeds: whether the story belongs to a seed.
        founded, factor: number of nodes at the beginning and replication factor that it needs. 0: any.
    """

    first: int
    lasts: Micros
    draw: Callable[[StorySetting], list[Drawn]]
    faults_after: bool = True
    is_alone: bool = False
    seeds: Callable[[int], bool] = always
    founded: int = 0
    factor: int = 0
