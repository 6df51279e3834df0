"""Principals: they are created, granted, limited, revoked and rotated while they and thieves send requests.

All processes of such a run sign their requests. Only the profile of principals has them, so other runs are unchanged.
The first principals are older than the run (``ringlog_sim.prefix``), since a node without a principal stops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ringlog.kernel.commands.cluster.cluster import ChangeSettings, Noop, TakeOver
from ringlog.kernel.commands.control.principals import (
    CreatePrincipal,
    GrantRole,
    RevokePrincipal,
    RevokeRole,
    RotatePrincipalKey,
)
from ringlog.kernel.commands.schema.batch import SchemaBatch, statement_of
from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace, CreateKeyspace, DropKeyspace
from ringlog.kernel.commands.topology.nodes import UpdateNode
from ringlog.kernel.model.principals import ADMIN, OPERATOR, PRINCIPAL_ROLES, SCOPED_ROLES, Principal
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.values import Command, Micros, Replication
from ringlog_sim.checks.base import Family
from ringlog_sim.checks.log.principals import Principals
from ringlog_sim.devices.keys import ADMIN_NAME, WRITER_NAME
from ringlog_sim.devices.world import MS, SECOND, Chance
from ringlog_sim.prefix import FIRST_PEOPLE
from ringlog_sim.stories.story import Drawn, StorySetting

PROFILE: Final = "principals"
"""The profile that always has principals. Others never have them."""
LASTS: Micros = 5 * SECOND
PEOPLE: Final = (*FIRST_PEOPLE, "p5", "p6", "p7")
KEYSPACES: Final = ("ks", "ks1", "ks2")
ASK, RACE, RECODE, REPLAY = "ask", "race", "recode", "replay"


def _grant(chance: Chance) -> tuple[str, tuple[str, ...]]:
    """Return a role and its keyspaces."""
    role = chance.pick([*PRINCIPAL_ROLES, OPERATOR, OPERATOR])
    is_scoped = role in SCOPED_ROLES and chance.happens(0.5)
    return role, tuple(name for name in KEYSPACES if chance.happens(0.5)) if is_scoped else ()


def _create(_: ClusterState, chance: Chance) -> Command:
    return CreatePrincipal(chance.pick(PEOPLE), *_grant(chance))


def _grants(_: ClusterState, chance: Chance) -> Command:
    return GrantRole(chance.pick(PEOPLE), *_grant(chance))


def _take(state: ClusterState, chance: Chance) -> Command:
    name = chance.pick(PEOPLE)
    known = state.principals.get(name)
    return RevokeRole(name, chance.pick([*(grant.role for grant in known.roles if known), ADMIN]) if known else ADMIN)


def _revoke(_: ClusterState, chance: Chance) -> Command:
    return RevokePrincipal(chance.pick(PEOPLE))


def _rotate(state: ClusterState, chance: Chance) -> Command:
    """Return a rotation, also of a process. A node that registers or joins would stop if its request is refused."""
    nodes = [node.name for _, node in in_order(state.nodes) if node.state == "normal" and node.name in state.principals]
    name = chance.pick([*PEOPLE, ADMIN_NAME, WRITER_NAME, *nodes])
    known = state.principals.get(name)
    return RotatePrincipalKey(name, (known.key if known else 1) + chance.weighted([(1, 8), (0, 1), (2, 1)]))


CHANGES: Final[Mapping[str, tuple[int, Callable[[ClusterState, Chance], Command]]]] = {
    "create": (3, _create),
    "grant": (3, _grants),
    "take": (2, _take),
    "revoke": (2, _revoke),
    "rotate": (3, _rotate),
}
"""Changes of principals: weight, and function that draws one."""


def wanted_command(state: ClusterState, chance: Chance, name: str) -> Command:
    """Return a command that the sender may send or not."""
    nodes = [node.id for _, node in in_order(state.nodes)]
    wanted: list[Command] = [
        Noop(),
        Noop(),
        ChangeSettings((("stream_tries_max", chance.between(3, 9)),)),
        GrantRole(name, ADMIN),
        RevokeRole(chance.pick(PEOPLE), ADMIN),
        TakeOver("spare", name, chance.between(1, 9)),
        CreateKeyspace(chance.pick(KEYSPACES[1:]), Replication("simple", 1)),
        AlterKeyspace(chance.pick(KEYSPACES[1:]), Replication("simple", 1)),
        DropKeyspace(chance.pick(KEYSPACES[1:])),
        SchemaBatch((statement_of(DropKeyspace("nowhere"), True),)),
        *([UpdateNode(chance.pick(nodes), release="0.1.0", capacity=chance.between(1, 3))] * 2 if nodes else []),
    ]
    return chance.pick(wanted)


def racing_change(known: Principal, chance: Chance) -> Command:
    """Return a change that takes a key or role from a principal, which sends commands at the same moment."""
    changes: list[Command] = [RotatePrincipalKey(known.name, known.key + 1)]
    if known.name in PEOPLE:
        changes += [RevokePrincipal(known.name), *(RevokeRole(known.name, grant.role) for grant in known.roles)] * 2
    return chance.pick(changes)


def racing_requests(chance: Chance) -> list[Command]:
    """Return the commands that such a principal sends."""
    return [Noop(), ChangeSettings((("stream_tries_max", chance.between(3, 9)),))]


def draw_principals(setting: StorySetting) -> list[Drawn]:
    """Draw changes and requests for every run of the profile."""
    if setting.profile != PROFILE:
        return []
    chance = setting.chance("principals")
    kinds = [(kind, weight) for kind, (weight, _) in CHANGES.items()] + [(ASK, 20), (RACE, 6), (RECODE, 2), (REPLAY, 2)]
    drawn: list[Drawn] = []
    for _ in range(chance.between(15, 30)):
        drawn.append((chance.between(50, 4_500) * MS, "principal", (chance.weighted(kinds),)))
    for _ in range(chance.between(0, 2)):
        drawn.append((chance.between(100, 4_000) * MS, "hand_over", ("validator",)))
    return drawn


FAMILY = Family(
    name="principals",
    commands=dict.fromkeys(("CreatePrincipal", "GrantRole", "RevokePrincipal", "RevokeRole", "RotatePrincipalKey")),
    checks=(Principals,),
)
