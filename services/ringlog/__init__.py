"""Ringlog: the metadata of a partitioned data store as one totally ordered log.

    import ringlog
    from ringlog import commands

    with ringlog.connect("127.0.0.1:9092", "shop", "deploy-tool") as client:
        print(client.submit(commands.create_keyspace("ks", 2)))

The names in ``__all__`` are the public interface; the modules behind them may change. Each name is imported when it is
first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ringlog import commands as commands
    from ringlog.client.aio import AsyncClient as AsyncClient
    from ringlog.client.cdc.errors import CdcReadError as CdcReadError
    from ringlog.client.cdc.reader import CdcReader as CdcReader
    from ringlog.client.cdc.rows import CdcChange as CdcChange
    from ringlog.client.cdc.rows import LogRow as LogRow
    from ringlog.client.changes import ChangeStream as ChangeStream
    from ringlog.client.changes import EpochUnknown as EpochUnknown
    from ringlog.client.changes import MetadataChange as MetadataChange
    from ringlog.client.client import Client as Client
    from ringlog.client.client import connect as connect
    from ringlog.client.data.coordinator import Coordinator as Coordinator
    from ringlog.client.data.plans import Access as Access
    from ringlog.client.data.plans import Answer as Answer
    from ringlog.client.data.plans import Level as Level
    from ringlog.client.data.plans import RequestPlan as RequestPlan
    from ringlog.client.data.plans import count as count
    from ringlog.client.data.row_writer import RowWriter as RowWriter
    from ringlog.client.engine import Submission as Submission
    from ringlog.client.errors import ClientBroken as ClientBroken
    from ringlog.client.errors import ClientClosed as ClientClosed
    from ringlog.client.errors import ClientError as ClientError
    from ringlog.client.errors import ClusterNotCreated as ClusterNotCreated
    from ringlog.client.errors import InvalidSubmission as InvalidSubmission
    from ringlog.client.errors import NoClusterGiven as NoClusterGiven
    from ringlog.client.errors import NotAuthorized as NotAuthorized
    from ringlog.client.errors import RequestImpossible as RequestImpossible
    from ringlog.client.errors import RequestTimedOut as RequestTimedOut
    from ringlog.client.errors import SubmissionTimedOut as SubmissionTimedOut
    from ringlog.client.errors import TooLarge as TooLarge
    from ringlog.client.errors import WriteUnanswered as WriteUnanswered
    from ringlog.client.participant.participant import Participant as Participant
    from ringlog.client.participant.store import AsyncStore as AsyncStore
    from ringlog.client.participant.store import Gain as Gain
    from ringlog.client.participant.store import Loss as Loss
    from ringlog.client.participant.store import NodeInfo as NodeInfo
    from ringlog.client.participant.store import Store as Store
    from ringlog.client.routing import KeyReplicas as KeyReplicas
    from ringlog.client.routing import Router as Router
    from ringlog.client.routing import replicas as replicas
    from ringlog.client.watch import MetadataWatch as MetadataWatch
    from ringlog.errors import RinglogError as RinglogError
    from ringlog.kernel.model.state import ClusterState as ClusterState
    from ringlog.kernel.model.state import Node as Node
    from ringlog.kernel.values import Command as Command
    from ringlog.kernel.values import Replication as Replication
    from ringlog.log.errors import LogError as LogError
    from ringlog.log.errors import LoginRefused as LoginRefused
    from ringlog.log.errors import LogUnavailable as LogUnavailable
    from ringlog.log.errors import RecordTooLarge as RecordTooLarge
    from ringlog.log.errors import ReplicaHalted as ReplicaHalted
    from ringlog.log.errors import TopicMissing as TopicMissing
    from ringlog.log.errors import WaitTimedOut as WaitTimedOut
    from ringlog.protocol.nodes.errors import NodeFailed as NodeFailed
    from ringlog.protocol.submission.results import AppliedResult as AppliedResult
    from ringlog.protocol.submission.results import ExpiredResult as ExpiredResult
    from ringlog.protocol.submission.results import RejectedResult as RejectedResult
    from ringlog.protocol.submission.results import Submitted as Submitted
    from ringlog.protocol.submission.results import WithdrawnResult as WithdrawnResult
    from ringlog.wire.errors import WireError as WireError
    from ringlog.wire.records import Cell as Cell
    from ringlog.wire.records import Mutation as Mutation

__version__ = "0.1.0.dev0"

FEATURES: tuple[str, ...] = ("tablets",)
"""Features that this release adds; its nodes announce them (``kernel.commands.cluster.features``)."""

__all__ = [
    "FEATURES",
    "Access",
    "Answer",
    "AppliedResult",
    "AsyncClient",
    "AsyncStore",
    "CdcChange",
    "CdcReadError",
    "CdcReader",
    "Cell",
    "ChangeStream",
    "Client",
    "ClientBroken",
    "ClientClosed",
    "ClientError",
    "ClusterNotCreated",
    "ClusterState",
    "Command",
    "Coordinator",
    "EpochUnknown",
    "ExpiredResult",
    "Gain",
    "InvalidSubmission",
    "KeyReplicas",
    "Level",
    "LogError",
    "LogRow",
    "LogUnavailable",
    "LoginRefused",
    "Loss",
    "MetadataChange",
    "MetadataWatch",
    "Mutation",
    "NoClusterGiven",
    "Node",
    "NodeFailed",
    "NodeInfo",
    "NotAuthorized",
    "Participant",
    "RecordTooLarge",
    "RejectedResult",
    "ReplicaHalted",
    "Replication",
    "RequestImpossible",
    "RequestPlan",
    "RequestTimedOut",
    "RinglogError",
    "Router",
    "RowWriter",
    "Store",
    "Submission",
    "SubmissionTimedOut",
    "Submitted",
    "TooLarge",
    "TopicMissing",
    "WaitTimedOut",
    "WireError",
    "WithdrawnResult",
    "WriteUnanswered",
    "commands",
    "connect",
    "count",
    "replicas",
]

_MODULES = {
    "ringlog.client.aio": ("AsyncClient",),
    "ringlog.client.cdc.errors": ("CdcReadError",),
    "ringlog.client.cdc.reader": ("CdcReader",),
    "ringlog.client.cdc.rows": ("CdcChange", "LogRow"),
    "ringlog.client.changes": ("ChangeStream", "EpochUnknown", "MetadataChange"),
    "ringlog.client.client": ("Client", "connect"),
    "ringlog.client.data.coordinator": ("Coordinator",),
    "ringlog.client.data.plans": ("Access", "Answer", "Level", "RequestPlan", "count"),
    "ringlog.client.data.row_writer": ("RowWriter",),
    "ringlog.client.engine": ("Submission",),
    "ringlog.client.errors": (
        "ClientBroken",
        "ClientClosed",
        "ClientError",
        "ClusterNotCreated",
        "InvalidSubmission",
        "NoClusterGiven",
        "NotAuthorized",
        "RequestImpossible",
        "RequestTimedOut",
        "SubmissionTimedOut",
        "TooLarge",
        "WriteUnanswered",
    ),
    "ringlog.client.participant.participant": ("Participant",),
    "ringlog.client.participant.store": (
        "AsyncStore",
        "Gain",
        "Loss",
        "NodeInfo",
        "Store",
    ),
    "ringlog.client.routing": ("KeyReplicas", "Router", "replicas"),
    "ringlog.client.watch": ("MetadataWatch",),
    "ringlog.errors": ("RinglogError",),
    "ringlog.kernel.model.state": ("ClusterState", "Node"),
    "ringlog.kernel.values": ("Command", "Replication"),
    "ringlog.log.errors": (
        "LogError",
        "LogUnavailable",
        "LoginRefused",
        "RecordTooLarge",
        "ReplicaHalted",
        "TopicMissing",
        "WaitTimedOut",
    ),
    "ringlog.protocol.nodes.errors": ("NodeFailed",),
    "ringlog.protocol.submission.results": (
        "AppliedResult",
        "ExpiredResult",
        "RejectedResult",
        "Submitted",
        "WithdrawnResult",
    ),
    "ringlog.wire.errors": ("WireError",),
    "ringlog.wire.records": ("Cell", "Mutation"),
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}


def _imported(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError:
        from ringlog.extras import explained

        with explained():
            raise


def __getattr__(name: str) -> Any:
    if name == "commands":
        return _imported("ringlog.commands")
    if name not in _PLACES:
        raise AttributeError(f"module ringlog has no attribute {name!r}")
    found = getattr(_imported(_PLACES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
