"""Rules of a batch: several schema commands in one entry, all or nothing.

Each command of a batch is decided by its own rule, on the state after the command before it. All of them have the same
epoch and state id. The first rejection rejects the batch, and names the statement. A statement may be marked
``if_needed``, as ``IF NOT EXISTS`` and ``IF EXISTS`` in CQL: it is skipped if its object already exists, or is already
dropped. The rule checks that, not the author, so no other author can change the schema in between.

A table that one batch alters twice has one new version, because no reader ever saw the one in between
(``schema.table_versions``).

Source: "SchemaBatch, all or nothing" of the schema commands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, get_args, get_type_hints

from ringlog.kernel.commands.schema import functions, keyspaces, user_types, views
from ringlog.kernel.commands.schema import tables as schema
from ringlog.kernel.commands.schema.functions import CreateAggregate, CreateFunction, DropAggregate, DropFunction
from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace, CreateKeyspace, DropKeyspace
from ringlog.kernel.commands.schema.tables import AlterTable, CreateTable, DropTable
from ringlog.kernel.commands.schema.user_types import AlterType, CreateType, DropType
from ringlog.kernel.commands.schema.views import CreateIndex, CreateView, DropIndex, DropView
from ringlog.kernel.model.modes import SCHEMA
from ringlog.kernel.model.outcome import Accepted, Decision, EntryContext, Rejected
from ringlog.kernel.model.principals import OPERATOR
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Before, Command, Value

CODES: Final[dict[str, str]] = {}

STATEMENTS_MAX: Final = 100
"""The most statements in one batch: a fold decides all of them before the next entry."""

NEEDLESS: Final[dict[type[Command], str]] = {
    CreateKeyspace: "keyspace_exists",
    DropKeyspace: "unknown_keyspace",
    CreateTable: "table_exists",
    DropTable: "unknown_table",
    CreateType: "type_exists",
    DropType: "unknown_type",
    CreateView: "view_exists",
    DropView: "unknown_view",
    CreateIndex: "index_exists",
    DropIndex: "unknown_index",
    CreateFunction: "function_exists",
    DropFunction: "unknown_function",
    CreateAggregate: "aggregate_exists",
    DropAggregate: "unknown_aggregate",
}
"""The code that says that a command is not needed, by command."""


class SchemaStatement(Value):
    """One command of a batch. Exactly one field after the first is set."""

    if_needed: Annotated[bool, "Skip a create command if the object exists, or a drop command if it does not."]
    create_keyspace: Annotated[CreateKeyspace | None, "Create a keyspace.", Before(None)] = None
    alter_keyspace: Annotated[AlterKeyspace | None, "Change the replication of a keyspace.", Before(None)] = None
    drop_keyspace: Annotated[DropKeyspace | None, "Drop a keyspace.", Before(None)] = None
    create_table: Annotated[CreateTable | None, "Create a table.", Before(None)] = None
    alter_table: Annotated[AlterTable | None, "Alter a table.", Before(None)] = None
    drop_table: Annotated[DropTable | None, "Drop a table.", Before(None)] = None
    create_type: Annotated[CreateType | None, "Create a user type.", Before(None)] = None
    alter_type: Annotated[AlterType | None, "Add fields to a user type.", Before(None)] = None
    drop_type: Annotated[DropType | None, "Drop a user type.", Before(None)] = None
    create_view: Annotated[CreateView | None, "Create a view.", Before(None)] = None
    drop_view: Annotated[DropView | None, "Drop a view.", Before(None)] = None
    create_index: Annotated[CreateIndex | None, "Create an index.", Before(None)] = None
    drop_index: Annotated[DropIndex | None, "Drop an index.", Before(None)] = None
    create_function: Annotated[CreateFunction | None, "Create a function.", Before(None)] = None
    drop_function: Annotated[DropFunction | None, "Drop a function.", Before(None)] = None
    create_aggregate: Annotated[CreateAggregate | None, "Create an aggregate.", Before(None)] = None
    drop_aggregate: Annotated[DropAggregate | None, "Drop an aggregate.", Before(None)] = None

    @property
    def commands(self) -> tuple[Command, ...]:
        """The given commands. A valid statement has one."""
        found = (getattr(self, name) for name in PLACES.values())
        return tuple(command for command in found if command is not None)


class SchemaBatch(Command):
    """Apply several schema commands in one entry, all or none."""

    PAUSED_BY = SCHEMA
    NEEDS = (OPERATOR,)

    statements: Annotated[tuple[SchemaStatement, ...], "Commands, applied in this order."]


def _places() -> dict[type[Command], str]:
    field_types = get_type_hints(SchemaStatement)
    return {get_args(field_types[name])[0]: name for name in SchemaStatement.__struct_fields__ if name != "if_needed"}


PLACES: Final = _places()
"""The commands that a batch may have, each with its field of a statement."""

_RULES: Final[dict[type[Command], Callable[[ClusterState, Any, EntryContext], Decision]]] = {
    kind: getattr(family, f"decide_{name}")
    for family in (keyspaces, schema, user_types, views, functions)
    for kind, name in PLACES.items()
    if kind.__module__ == family.__name__
}

assert _RULES.keys() == PLACES.keys(), "each statement of a batch has a rule"
assert NEEDLESS.keys() == {kind for kind in PLACES if not kind.__name__.startswith("Alter")}, (
    "only alterations are always needed"
)
assert {*NEEDLESS.values()} <= {
    code for family in (keyspaces, schema, user_types, views, functions) for code in family.CODES
}, "each name is a code of these rules"


def statement_of(command: Command, if_needed: bool = False) -> SchemaStatement:
    """Return the statement with this schema command."""
    given: dict[str, Any] = {PLACES[type(command)]: command}
    return SchemaStatement(if_needed, **given)


def decide_schema_batch(state: ClusterState, command: SchemaBatch, context: EntryContext) -> Decision:
    """Decide each statement on the state after the statements before it."""
    statements = command.statements
    if not 1 <= len(statements) <= STATEMENTS_MAX:
        return Rejected("bad_field", f"statements: must be 1 to {STATEMENTS_MAX}")
    for number, statement in enumerate(statements, start=1):
        decided = _decided(state, statement, context)
        if isinstance(decided, Rejected):
            return Rejected(decided.code, f"statements, {number} of {len(statements)}: {decided.detail}")
        state = decided.state
    return Accepted(state)


def _decided(state: ClusterState, statement: SchemaStatement, context: EntryContext) -> Decision:
    commands = statement.commands
    if len(commands) != 1:
        return Rejected("bad_field", f"a statement is one command, not {len(commands)}")
    kind = type(commands[0])
    if statement.if_needed and kind not in NEEDLESS:
        return Rejected("bad_field", f"if_needed: does not apply to {kind.__name__}")
    decided = _RULES[kind](state, commands[0], context)
    if statement.if_needed and isinstance(decided, Rejected) and decided.code == NEEDLESS[kind]:
        return Accepted(state)
    return decided
