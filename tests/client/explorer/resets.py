"""Resets of a zone's partition: voters are lost, and one survivor merges the data of the other replicas.

Three of five nodes vote. With two voters down the partition is blocked, and three replicas are alive.
"""

from __future__ import annotations

from collections.abc import Callable

from ringlog.kernel.commands.topology.nodes import DeclareUp
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command, replace
from ringlog.wire.data import key_of
from tests.client.explorer.coordinators import Scenario
from tests.kernel.zones.states import done, down, ids, partition, reset, shown, tried
from tests.kernel.zones.zone_keyspaces import TABLE, of_coordinator, with_data


class Reset:
    """A partition with two lost voters. ``left``: the letters of the live nodes, the survivor first."""

    def __init__(self) -> None:
        self.log: list[ClusterState] = [with_data("ABCDE", partitions=1, replicas=5, quorum=2)]
        voters, _ = shown(partition(self.log[0]).stable).split("/")
        self.left = "".join(sorted(set("ABCDE") - set(voters[:2])))
        self.log.append(done(self.log[0], *down(voters[:2])))

    def do(self, *commands: Command) -> Reset:
        for command in commands:
            self.log.append(done(self.log[-1], command))
        return self

    def reset(self, *, admits_loss: bool = False) -> Reset:
        return self.do(reset(self.log[-1], dict.fromkeys(self.left, 1), admits_loss=admits_loss))

    def advanced(self) -> Reset:
        """Advance the tablet as far as the gates permit."""
        while commands := [one for one in of_coordinator(self.log[-1]) if not tried(self.log[-1], one)[1]]:
            self.do(commands[0])
        return self

    def scenario(self) -> Scenario:
        return Scenario(tuple(self.log), key_of(TABLE, b"k"))


def most_are_left() -> Scenario:
    """Reset without an admitted loss: a majority of the replicas with data is alive."""
    return Reset().reset().advanced().scenario()


def known_to_all() -> Scenario:
    """All nodes know the reset; later entries arrive late, and down nodes still run."""
    found = mistaken(most_are_left())
    return replace(found, log=found.log[2:])


def one_more_dies(*, admits_loss: bool = False) -> Scenario:
    """Another node is declared down just after the reset and comes back later."""
    found = Reset().reset(admits_loss=admits_loss)
    found.do(*down(found.left[1])).advanced()
    return found.do(DeclareUp(ids(found.left[1])[0], "")).advanced().scenario()


def back_before_the_step() -> Scenario:
    """One more node is declared down: most data is lost, and the operator admits the loss. The node comes back after
    the survivor has reported its merge and before reads use it. No coordinator sees a state between the loss and the
    reset, and the log ends when reads use the survivor.
    """
    found = Reset().reset(admits_loss=True)
    found.do(*down(found.left[1]), DeclareUp(ids(found.left[1])[0], "")).advanced()
    found.log = [found.log[0], *found.log[2:6]]
    return found.scenario()


def mistaken(made: Scenario) -> Scenario:
    """Nodes that are declared down still run."""
    return replace(made, mistaken=True)


ADMITTED: dict[str, Callable[[], Scenario]] = {
    "reset, one more dies while the survivor fetches, and the loss is admitted": lambda: one_more_dies(admits_loss=True)
}

RESETS: dict[str, Callable[[], Scenario]] = {
    "reset, most of the data is left": most_are_left,
    "reset, most of the data is left, and who is down lives": lambda: mistaken(most_are_left()),
    "reset that all know, and who is down lives": known_to_all,
    "reset, one more dies while the survivor fetches, and comes back": one_more_dies,
    "reset, one more dies while the survivor fetches, and is back before the step": back_before_the_step,
    "reset, one more is down while the survivor fetches, and all live": lambda: mistaken(one_more_dies()),
}
