"""Principals: the names that requests are signed with, and their roles.

=============  =======================================================================================
role           holder, and the commands that it may send
=============  =======================================================================================
application    a program that uses the data; only commands that every principal with a role may send
node           a data node or a CDC writer; commands about the object that has the principal's name
operator       a person or tool that runs the cluster: topology, schema, tablets, zones, settings
admin          everything that an operator may send, also recovery, truncation and principals
agent          an agent; commands that carry acknowledgements, terms, generations or confirmations
=============  =======================================================================================

Agents exist implicitly, under the names of their roles in the cluster (``AGENTS``). They may send the commands of
agents and of operators: the balancer plans moves, the coordinator requests generations.

Each command class declares the roles that may send it (``NEEDS``). ``kernel.authorization`` has the check.

Invariants: a name is never used again after its principal was revoked, so it identifies one principal in the whole log.
The number of a principal's key only increases. A cluster that has principals has an admin.

Source: CEP-21, "credentials and permissions" as cluster metadata.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from ringlog.kernel.model.state_section import WHOLE, StateSection
from ringlog.kernel.values import Epoch, Value

APPLICATION, NODE, OPERATOR, ADMIN, AGENT = "application", "node", "operator", "admin", "agent"
PRINCIPAL_ROLES: Final = (APPLICATION, NODE, OPERATOR, ADMIN, AGENT)
ANY_ROLE: Final = PRINCIPAL_ROLES
"""``NEEDS`` of a command that every principal with a role may send."""
SCOPED_ROLES: Final = (APPLICATION, OPERATOR)
"""Roles that can be limited to keyspaces."""
IMPLIED_BY: Final[Mapping[str, tuple[str, ...]]] = {OPERATOR: (ADMIN,)}
"""Role to the roles that include it."""

KEYSPACES_MAX: Final = 16
"""The most keyspaces of one grant. With 10,000 principals, the section has at most some 20 MB."""


class Grant(Value):
    """A role of a principal. ``keyspaces``: the only keyspaces that it covers, by ascending name; empty: all."""

    role: str
    keyspaces: tuple[str, ...] = ()


class Principal(Value):
    """A sender of requests. ``roles`` are sorted by name. ``key``: the number of its only valid key.

    ``revoked``: the epoch that revoked it; None: it is active. A revoked principal has no roles.
    """

    name: str
    roles: tuple[Grant, ...]
    key: int
    created: Epoch
    revoked: Epoch | None = None


AGENT_NAMES: Final = ("validator", "coordinator", "publisher", "keeper", "balancer", "rebalancer")
"""Agents author entries with these names and a suffix, so no other principal may have such a name."""
_SEPARATORS: Final = re.compile("[-._]")
SENDER_CODES: Final = ("not_authenticated", "not_authorized", "approval_needed")
"""Codes of requests that their sender may not send."""
FIRST_KEY: Final = 1
FOUNDING_KEY: Final = 0
"""The number of the key that signs the creation of the first admin. No key file has it: only the master makes it."""
AGENTS: Final = {name: Principal(name, (Grant(AGENT), Grant(OPERATOR)), FIRST_KEY, 0) for name in AGENT_NAMES}

PRINCIPALS: Final = StateSection(
    "principals",
    Principal,
    unpublished={WHOLE: "only validators and operators use them, and they fold the log"},
    most=(10_000, "principals, including revoked ones"),
)


def is_reserved(name: str) -> bool:
    """Return True if a reader of the log may take this name for an agent, as ``Validator_1``."""
    return _SEPARATORS.split(name.lower())[0] in AGENT_NAMES


def principal_of(principals: Mapping[str, Principal], name: str) -> Principal | None:
    """Return the principal of this name, or the agent; None if there is none."""
    return principals.get(name) or AGENTS.get(name)


def grant_of(principal: Principal, role: str) -> Grant | None:
    """Return the grant of exactly this role, or None."""
    return next((grant for grant in principal.roles if grant.role == role), None)


def has_admin(principals: Mapping[str, Principal]) -> bool:
    """Return True if one of the principals is an admin."""
    return any(grant_of(principal, ADMIN) is not None for principal in principals.values())
