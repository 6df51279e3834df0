"""The registry of commands: each is declared in one family file of ``kernel.commands``.

A family file has the class of each of its commands (a frozen dataclass derived from ``Command``) and its rule: a pure
function ``decide_…(state, command, context) -> Decision``. The class of the second argument says which command the rule
decides. ``CODES`` of the file are the family's reasons for rejection with their meaning. Payloads, JSON, reference
pages, fuzzing and the simulator get the list of commands from here.

The registry also has the closed set of rejection codes: a stable code and its meaning. Codes are part of the interface:
programs branch on them, so a released code keeps its meaning. Every ``Rejected`` has one of these codes and its own
sentence that names field and rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, get_type_hints

from ringlog.kernel.commands.cdc import clock as cdc_clock
from ringlog.kernel.commands.cdc import expiry as cdc_expiry
from ringlog.kernel.commands.cdc import generations as cdc
from ringlog.kernel.commands.cdc import verdicts
from ringlog.kernel.commands.cdc import writers as cdc_writers
from ringlog.kernel.commands.cluster import cluster, features, service, snapshots, truncation
from ringlog.kernel.commands.control import pauses, plans, principals, recovery
from ringlog.kernel.commands.placement import rebalances, resizes, tablets, zones
from ringlog.kernel.commands.schema import batch as schema_batch
from ringlog.kernel.commands.schema import functions, keyspaces, user_types, views
from ringlog.kernel.commands.schema import tables as schema
from ringlog.kernel.commands.topology import movements, nodes, operations
from ringlog.kernel.model.modes import SCOPES, UNPAUSED
from ringlog.kernel.model.outcome import Decision, EntryContext
from ringlog.kernel.model.plans import DANGEROUS
from ringlog.kernel.model.principals import PRINCIPAL_ROLES
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command

FAMILIES: Final = (
    cluster,
    features,
    snapshots,
    truncation,
    nodes,
    movements,
    operations,
    keyspaces,
    schema,
    user_types,
    views,
    functions,
    schema_batch,
    tablets,
    resizes,
    pauses,
    principals,
    plans,
    service,
    recovery,
    cdc,
    cdc_writers,
    cdc_expiry,
    cdc_clock,
    verdicts,
    zones,
    rebalances,
)
"""The family files, in the order of the reference pages."""

Rule = Callable[[ClusterState, Any, EntryContext], Decision]


def _rules() -> dict[type[Command], Rule]:
    """Return the rules by the class of their second argument, in the order of their declaration."""
    found: dict[type[Command], Rule] = {}
    for family in FAMILIES:
        for name, rule in vars(family).items():
            if name.startswith("decide_") and rule.__module__ == family.__name__:
                _, kind, *_ = get_type_hints(rule).values()
                assert kind.__module__ == family.__name__, f"{kind.__name__} and its rule are in one file"
                assert kind not in found, f"{kind.__name__} has one rule"
                found[kind] = rule
        commands = {kind for kind in vars(family).values() if isinstance(kind, type) and issubclass(kind, Command)}
        assert {kind for kind in commands if kind.__module__ == family.__name__} <= found.keys(), "each has a rule"
    return found


RULES: Final = _rules()

assert {kind.__name__ for kind in RULES if kind.DANGEROUS} == {*DANGEROUS}, "dangerous commands are listed"
assert all("PAUSED_BY" in vars(kind) for kind in RULES), "each command declares the pause that blocks it"
assert all(kind.PAUSED_BY in (UNPAUSED, *SCOPES) for kind in RULES), "the declared pause is a scope or none"
assert all({*vars(kind).get("NEEDS", ())} & {*PRINCIPAL_ROLES} for kind in RULES), "each command declares its roles"
assert all({"keyspace", "name"} <= {*kind.__struct_fields__} for kind in RULES if kind.CHANGES_ITS_TABLE), (
    "a command that changes its table names it"
)

COMMANDS: Final[dict[str, type[Command]]] = {kind.__name__: kind for kind in RULES}
"""Kind (the wire name) to class."""
assert len(COMMANDS) == len(RULES), "names of commands are unique"

VERSIONS: Final[dict[str, int]] = {name: kind.VERSION for name, kind in COMMANDS.items()}
"""Kind to the version that this release writes."""


_PROTOCOL: Final = {
    "answer_forgotten": "Too many requests were rejected to keep each answer. Submit again with a new request id.",
    "bad_field": "A field breaks its own rule in every state.",
    "bad_json": "The text is not a JSON command.",
    "broken_rule": "A rule of this release has a defect and failed. The author appends nothing; a reader halts.",
    "request_expired": "The request is older than the deduplication window, so a copy of it could not be detected.",
    "request_id_reused": "The request id belongs to another applied command.",
    "state_id_not_above": "The state id is not above the previous one.",
    "too_many": "The maximum number of objects of this kind exists. See docs/limits.md.",
    "too_large": "The result is larger than its readers can receive.",
    "undecodable": "The payload of a known command cannot be decoded.",
    "unknown_command": "This release does not support the command or its version.",
    "unknown_field": "The command does not have the field.",
    "unreadable_entry": "A record of the log is not a valid entry. The detail names the broken rule.",
}
"""Codes of the log itself, and of every command."""

_CODE_TABLES: Final = (_PROTOCOL, *(getattr(family, "CODES", {}) for family in FAMILIES))

CODES: Final[dict[str, str]] = {code: meaning for codes in _CODE_TABLES for code, meaning in codes.items()}
"""Code to its meaning, one sentence each."""

assert len(CODES) == sum(map(len, _CODE_TABLES)), "each code is declared once"
