"""The schema in the state, and the earlier versions that still apply to earlier writes.

These are frozen dataclasses; the next state shares every unchanged part. ``kernel.invariants`` declares and checks the
invariants of every state.
"""

from __future__ import annotations

from typing import Annotated, Final

from ringlog.kernel.cql.types import signature
from ringlog.kernel.model.state_section import StateSection
from ringlog.kernel.values import CdcOptions, Column, Epoch, Micros, Replication, TabletOptions, TypeField, Value


class Keyspace(Value):
    """A keyspace. ``version``: the state id of the entry that last changed it.

    ``placement``: the key of its ranges in ``ClusterState.placements`` while its replication changes; empty: that of
    ``replication``. ``made``: the epoch that created it, which distinguishes it from earlier keyspaces of the same
    name. ``joined``: the epoch that last merged its placement with another one; 0: none. A member's ``since`` is then
    the later of two epochs, although the member had its data before.
    """

    name: str
    replication: Replication
    version: str
    placement: str = ""
    made: Epoch = 0
    joined: Epoch = 0


class Table(Value):
    """A table. ``version`` as in Keyspace. ``committed_by_log``: the version came from the log, not from a digest.

    ``declared``: columns whose types were given with names of user types, and these types; in ``columns`` the names are
    expanded. ``tablets``: options of its tablets, if it has tablets. ``stored``: the stored names of its columns
    (``schema.stored``). ``respelled``: the epoch at which a column was last dropped or renamed; 0: never. ``made``: the
    epoch that created the table.
    """

    id: str
    keyspace: str
    name: str
    columns: tuple[Column, ...]
    partition_key: tuple[str, ...]
    clustering_key: tuple[str, ...]
    cdc: CdcOptions
    version: str
    changed: Epoch
    committed_by_log: bool = True
    declared: tuple[tuple[str, str], ...] = ()
    tablets: TabletOptions | None = None
    stored: tuple[tuple[str, str], ...] = ()
    respelled: Epoch = 0
    made: Epoch = 0

    @property
    def full_name(self) -> str:
        """Return ``keyspace.table``, the key of ``ClusterState.tables``."""
        return f"{self.keyspace}.{self.name}"


class UserType(Value):
    """A user type; the types of its fields may name other user types."""

    keyspace: str
    name: str
    fields: tuple[TypeField, ...]
    version: str
    changed: Epoch


_VERSION: Final = "State id of the last change."
_CHANGED: Final = "Epoch of the last change."


class View(Value):
    """A materialized view: the rows of a table under another key."""

    keyspace: Annotated[str, "Name of the keyspace of the view and its table."]
    name: Annotated[str, "Name of the view. No table of the keyspace has the same name."]
    table: Annotated[str, "Name of the table."]
    columns: Annotated[tuple[str, ...], "Columns of the view, in the order of the table."]
    partition_key: Annotated[tuple[str, ...], "Names of the columns of the view's partition key, in key order."]
    clustering_key: Annotated[tuple[str, ...], "Names of the columns of the view's clustering key, in key order."]
    version: Annotated[str, _VERSION]
    changed: Annotated[Epoch, _CHANGED]


class TableIndex(Value):
    """An index: the rows of a table by the values of one column."""

    keyspace: Annotated[str, "Name of the keyspace of the index and its table."]
    name: Annotated[str, "Name of the index."]
    table: Annotated[str, "Name of the table."]
    column: Annotated[str, "Name of the indexed column."]
    version: Annotated[str, _VERSION]
    changed: Annotated[Epoch, _CHANGED]


class Function(Value):
    """A user function. Its types may name user types. Argument types that differ only in frozen are the same."""

    keyspace: Annotated[str, "Name of the keyspace."]
    name: Annotated[str, "Name of the function. Functions with other argument types may have the same name."]
    arguments: Annotated[tuple[str, ...], "Types of the arguments, in order."]
    argument_names: Annotated[tuple[str, ...], "Names of the arguments, as used in the body."]
    returns: Annotated[str, "Type of the return value."]
    language: Annotated[str, "Language of the body."]
    body: Annotated[str, "Source code of the function."]
    called_on_null: Annotated[bool, "Whether the function accepts null arguments. If not, it returns null."]
    version: Annotated[str, _VERSION]
    changed: Annotated[Epoch, _CHANGED]

    @property
    def signature(self) -> str:
        """Return ``keyspace.name(types)``, the key of ``ClusterState.functions``."""
        return signature(self.keyspace, self.name, self.arguments)


class Aggregate(Value):
    """A user aggregate: a state function that is called for each row, and a final function that returns the result."""

    keyspace: Annotated[str, "Name of the keyspace of the aggregate and its functions."]
    name: Annotated[str, "Name of the aggregate. Aggregates with other argument types may have the same name."]
    arguments: Annotated[tuple[str, ...], "Types of the arguments, in order."]
    state_function: Annotated[str, "Name of the function that returns the next state from the state and the arguments."]
    state_type: Annotated[str, "Type of the state."]
    final_function: Annotated[str, "Name of the function of the last state. Empty: the last state is the result."]
    initial: Annotated[str | None, "Initial state as a CQL literal. Null: a null state."]
    version: Annotated[str, _VERSION]
    changed: Annotated[Epoch, _CHANGED]

    @property
    def signature(self) -> str:
        """Return ``keyspace.name(types)``, the key of ``ClusterState.aggregates``."""
        return signature(self.keyspace, self.name, self.arguments)

    @property
    def functions(self) -> tuple[str, ...]:
        """Return the signatures of its functions."""
        state = signature(self.keyspace, self.state_function, (self.state_type, *self.arguments))
        final = signature(self.keyspace, self.final_function, (self.state_type,))
        return (state, final) if self.final_function else (state,)


_TOPIC: Final = "schema"

VIEWS: Final = StateSection("views", View, _TOPIC, prefix="view/", key="keyspace.view", most=(10_000, "views"))
INDEXES: Final = StateSection(
    "indexes", TableIndex, _TOPIC, prefix="index/", key="keyspace.index", most=(20_000, "indexes")
)
FUNCTIONS: Final = StateSection(
    "functions", Function, _TOPIC, prefix="function/", key="keyspace.function(types)", most=(2_000, "user functions")
)
AGGREGATES: Final = StateSection(
    "aggregates",
    Aggregate,
    _TOPIC,
    prefix="aggregate/",
    key="keyspace.aggregate(types)",
    most=(2_000, "user aggregates"),
)


# ------------------------------------------------------------------------------------------- verdicts on writes


class TableVersion(Value):
    """A version of a table for writes appended from ``since`` on. Writes may name it until ``end``.

    Both in microseconds; ``end`` None: no later version.
    """

    table: Table
    since: Micros
    end: Micros | None = None


class TableLifetime(Value):
    """The versions of a table, one or more. Writes appended from ``until`` on are not accepted; None: it is not
    dropped.
    """

    versions: tuple[TableVersion, ...]
    until: Micros | None = None


class PastLeeway(Value):
    """The leeway for writes appended before ``until``, and not before the ``until`` of the preceding one."""

    leeway: Micros
    until: Micros


class Settled(Value):
    """Times that bind verdicts on writes (``generations.verdicts``), in microseconds.

    ``until``: the validation watermark. No later entry changes a verdict on a write appended before it. 0: no promise;
    the current state decides. ``forgotten``: versions that apply only to writes appended before it are not stored.
    ``lowered``: the epoch at which an operator last lowered ``until``; 0: never.
    """

    until: Micros = 0
    forgotten: Micros = 0
    leeways: tuple[PastLeeway, ...] = ()
    lowered: Epoch = 0
