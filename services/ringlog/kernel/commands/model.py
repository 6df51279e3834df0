"""Every command of the log as an immutable value: the vocabulary, without the rules.

Field names are those of the Avro records in ``ringlog_schemas/commands`` (one record a command, named like the
class) and of the JSON that operators type. ``VERSIONS`` gives the version that this release writes. The rules are
in the sibling modules, one ``decide`` a command.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from ringlog.kernel.commands.model_cdc import (
    AdvanceCdcWriter as AdvanceCdcWriter,
)
from ringlog.kernel.commands.model_cdc import (
    CloseCdcGeneration as CloseCdcGeneration,
)
from ringlog.kernel.commands.model_cdc import (
    CommitCdcGeneration as CommitCdcGeneration,
)
from ringlog.kernel.commands.model_cdc import (
    ExpireCdcGeneration as ExpireCdcGeneration,
)
from ringlog.kernel.commands.model_cdc import (
    FenceCdcWriter as FenceCdcWriter,
)
from ringlog.kernel.commands.model_cdc import (
    ForgetCdcGeneration as ForgetCdcGeneration,
)
from ringlog.kernel.commands.model_cdc import (
    GenerationRange as GenerationRange,
)
from ringlog.kernel.commands.model_cdc import (
    LowerCdcWriter as LowerCdcWriter,
)
from ringlog.kernel.commands.model_cdc import (
    Position as Position,
)
from ringlog.kernel.commands.model_cdc import (
    PublishCdcGeneration as PublishCdcGeneration,
)
from ringlog.kernel.commands.model_cdc import (
    PutCdcGenerationData as PutCdcGenerationData,
)
from ringlog.kernel.commands.model_cdc import (
    RegisterCdcWriter as RegisterCdcWriter,
)
from ringlog.kernel.commands.model_cdc import (
    RequestCdcGeneration as RequestCdcGeneration,
)
from ringlog.kernel.commands.model_cdc import (
    WithdrawCdcGeneration as WithdrawCdcGeneration,
)
from ringlog.kernel.commands.model_types import (
    AlterType as AlterType,
)
from ringlog.kernel.commands.model_types import (
    CreateType as CreateType,
)
from ringlog.kernel.commands.model_types import (
    DropType as DropType,
)
from ringlog.kernel.commands.model_types import (
    TypeField as TypeField,
)

# ---------------------------------------------------------------------------------------------------- cluster


@dataclass(frozen=True, slots=True)
class InitializeCluster:
    """Found the cluster; only as the first entry. ``settings``: (name, value) pairs that differ from the defaults."""

    name: str
    settings: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ChangeSettings:
    """Set known settings to sane values; all or none."""

    settings: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class RegisterNode:
    """A node makes itself known.

    It owns nothing yet (node state ``none``). ``address`` is host:port of its own server.
    """

    name: str
    id: str
    address: str
    datacenter: str
    rack: str
    shards: int
    ignore_msb: int
    release: str
    features: tuple[str, ...]
    capacity: int


@dataclass(frozen=True, slots=True)
class UpdateNode:
    """What a node said of itself is not so any more: after a move to another machine, an upgrade, more disks.

    What is None stays. ``features`` are all that it has from now on.
    """

    node: str
    address: str | None = None
    release: str | None = None
    features: tuple[str, ...] | None = None
    capacity: int | None = None
    shards: int | None = None


@dataclass(frozen=True, slots=True)
class UnregisterNode:
    """A node that owns nothing and wants nothing is gone for good; its id and name stay taken."""

    node: str


@dataclass(frozen=True, slots=True)
class DeclareDown:
    """An operator or an external system says that a node does not run: the only liveness that the log knows."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class DeclareUp:
    """A node that was declared down runs again."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class TakeOver:
    """``instance`` becomes the one that acts in ``role``; refused unless ``term`` is above the role's last."""

    role: str
    instance: str
    term: int


@dataclass(frozen=True, slots=True)
class Noop:
    """Changes nothing but the epoch.

    A strict barrier, and the way to withdraw a request or to settle an entry's fate.
    """


# ------------------------------------------------------------------------------------------- node operations


@dataclass(frozen=True, slots=True)
class Join:
    """A registered node asks for ``tokens`` (resolved by the author). ``seed``: 16 random bytes for its CDC streams."""

    node: str
    tokens: tuple[int, ...]
    seed: bytes


@dataclass(frozen=True, slots=True)
class Leave:
    """A normal node gives its tokens up and leaves for good."""

    node: str


@dataclass(frozen=True, slots=True)
class Move:
    """A normal node exchanges its tokens for ``tokens``, all that it owns then. ``seed`` as in Join."""

    node: str
    tokens: tuple[int, ...]
    seed: bytes


@dataclass(frozen=True, slots=True)
class Replace:
    """A registered node takes over the tokens of ``replaced``, which leaves for good.

    ``ignore_nodes``: nodes declared down that are neither waited for nor read from.
    """

    node: str
    replaced: str
    ignore_nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Remove:
    """A node that was declared down leaves for good, driven by the others. ``ignore_nodes`` as in Replace."""

    node: str
    ignore_nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Assassinate:
    """Last resort: a node that was declared down leaves at once, nothing is streamed, rows may be lost."""

    node: str


@dataclass(frozen=True, slots=True)
class Rebuild:
    """A normal node streams all its ranges anew, from ``source_datacenter`` (empty: from wherever there are
    replicas).
    """

    node: str
    source_datacenter: str = ""


@dataclass(frozen=True, slots=True)
class Witness:
    """A node's acknowledgement: it applied epoch ``applied`` and every write admitted below ``drained`` is applied."""

    node: str
    applied: int
    drained: int


@dataclass(frozen=True, slots=True)
class StreamReport:
    """A gaining node has fetched all rows it gains: count and checksum (hex) agree with what the sources sent."""

    node: str
    operation: str
    rows: int
    checksum: str


@dataclass(frozen=True, slots=True)
class AdvanceOperation:
    """Move an operation to its next stage; the witnesses must satisfy the gate of the stage it leaves."""

    operation: str
    to: str
    witnesses: tuple[Witness, ...] = ()
    reports: tuple[StreamReport, ...] = ()


@dataclass(frozen=True, slots=True)
class CancelOperation:
    """An operator calls an operation off; only before ``write_both_read_new``."""

    operation: str
    reason: str


@dataclass(frozen=True, slots=True)
class FailOperation:
    """``node`` (if known) has an error that no retry can mend (rolled back before ``write_both_read_new``), or asked
    for its rows ``tries`` times since epoch ``since``. What is not rolled back stops the operation.
    """

    operation: str
    reason: str
    node: str = ""
    tries: int = 0
    since: int = 0


@dataclass(frozen=True, slots=True)
class RetryOperation:
    """An operator's decision: the operation is tried again; ``ignore_nodes``: from ``write_both_read_new`` on without
    these, declared down; ``admits_loss``: even if late reads of others may then miss rows.
    """

    operation: str
    reason: str
    ignore_nodes: tuple[str, ...] = ()
    admits_loss: bool = False


# ----------------------------------------------------------------------------------------------------- schema


@dataclass(frozen=True, slots=True)
class DatacenterReplication:
    """Replicas of each range in one datacenter: ``factor`` of them, or one in each of ``racks`` (factor = their
    number).
    """

    datacenter: str
    factor: int
    racks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Replication:
    """How a keyspace is replicated.

    ``simple`` has a ``factor``; ``network`` has ``datacenters`` by ascending name, and ``factor`` is the sum of
    theirs; ``entire`` (every node has everything) has factor 0.
    """

    strategy: str
    factor: int
    datacenters: tuple[DatacenterReplication, ...] = ()


@dataclass(frozen=True, slots=True)
class Column:
    """A column and its CQL type name, e.g. ``text``, ``bigint``, ``map<text, int>``.

    ``static``: all rows of a partition share its value.
    """

    name: str
    type: str
    static: bool = False


@dataclass(frozen=True, slots=True)
class CdcOptions:
    """What a table's CDC log holds.

    ``preimage``: false, true or full; ``delta``: full or keys; ``ttl`` in seconds, 0 = never.
    """

    enabled: bool = False
    preimage: str = "false"
    postimage: bool = False
    delta: str = "full"
    ttl: int = 86_400


@dataclass(frozen=True, slots=True)
class CreateKeyspace:
    """A new keyspace; its replication must be possible on the nodes that are normal now."""

    name: str
    replication: Replication


@dataclass(frozen=True, slots=True)
class AlterKeyspace:
    """Another replication for a keyspace; an operation, unless no range changes hands."""

    name: str
    replication: Replication


@dataclass(frozen=True, slots=True)
class DropKeyspace:
    """Drop an empty keyspace."""

    name: str


@dataclass(frozen=True, slots=True)
class CreateTable:
    """A new table; ``id`` (UUID) is never used again. A second create of the same name is refused, not merged.

    ``types``: what columns may be. 1: of scalar types, all that version 1 knew; 2: also of collections, tuples,
    user types, or static.
    """

    keyspace: str
    name: str
    id: str
    columns: tuple[Column, ...]
    partition_key: tuple[str, ...]
    clustering_key: tuple[str, ...]
    cdc: CdcOptions
    types: int = 2


@dataclass(frozen=True, slots=True)
class AlterTable:
    """Add columns and, where given, replace the CDC options. ``types``: as in ``CreateTable``."""

    keyspace: str
    name: str
    add_columns: tuple[Column, ...] = ()
    cdc: CdcOptions | None = None
    types: int = 2


@dataclass(frozen=True, slots=True)
class DropTable:
    """Drop a table."""

    keyspace: str
    name: str


Command = (
    InitializeCluster
    | ChangeSettings
    | RegisterNode
    | UpdateNode
    | UnregisterNode
    | DeclareDown
    | DeclareUp
    | TakeOver
    | Noop
    | Join
    | Leave
    | Move
    | Replace
    | Remove
    | Assassinate
    | Rebuild
    | AdvanceOperation
    | CancelOperation
    | FailOperation
    | RetryOperation
    | CreateKeyspace
    | AlterKeyspace
    | DropKeyspace
    | CreateTable
    | AlterTable
    | DropTable
    | CreateType
    | AlterType
    | DropType
    | RequestCdcGeneration
    | PutCdcGenerationData
    | RegisterCdcWriter
    | AdvanceCdcWriter
    | CommitCdcGeneration
    | PublishCdcGeneration
    | CloseCdcGeneration
    | ExpireCdcGeneration
    | ForgetCdcGeneration
    | FenceCdcWriter
    | LowerCdcWriter
    | WithdrawCdcGeneration
)

COMMANDS: dict[str, type[Command]] = {kind.__name__: kind for kind in get_args(Command)}
"""Kind (the wire name) to class."""

VERSIONS: dict[str, int] = dict.fromkeys(COMMANDS, 1) | dict.fromkeys(
    ("CreateKeyspace", "CreateTable", "AlterTable", "CloseCdcGeneration", "RegisterCdcWriter", "AdvanceCdcWriter"), 2
)
"""Kind to the version that this release writes; a released (kind, version) is frozen."""
