"""``ringlog recover``: rebuild a lost log from a copy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from ringlog.agents.exits import accept_recovery
from ringlog.cli import help as help_texts
from ringlog.cli.shared.connection import Bootstrap, Cluster, Json, fail, out, resolve
from ringlog.client.creation.recovery import RecoveryPlan, planned, rebuild
from ringlog.client.creation.recovery_place import FoundLog, KafkaPlace
from ringlog.client.node_reports import AcksReader
from ringlog.client.participant.folder import exclusive_folder, known_epochs_in
from ringlog.files import FileUnusable, process_data_dir, read_input, write_private
from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.values import Epoch
from ringlog.log.archive.archive import Archive
from ringlog.log.archive.copies import LogCopy, copy_of_archive, end_of
from ringlog.log.archive.locations import FolderLocation, open_location
from ringlog.log.errors import TopicMissing
from ringlog.node.log.log_copy import COPY, copy_of_member
from ringlog.operator.history.state_json import composed, exported
from ringlog.operator.views.words import printable
from ringlog.protocol.nodes.errors import NodeFailed
from ringlog.runtime.context import ClusterContext

STATE_BYTES_MAX = 2**30
"""The largest edited state, in bytes. A million ranges need some hundred bytes each."""


def recover(
    place: Annotated[
        str,
        typer.Argument(metavar="PLACE", help="Folder of a metadata service member's node, or location of an archive."),
    ],
    operator: Annotated[str, typer.Option(help=help_texts.OPERATOR)] = "",
    reason: Annotated[str, typer.Option(help="Reason, recorded in the log.")] = "",
    export: Annotated[
        Path | None,
        typer.Option(help="Only write the copy's last state to this file, as editable JSON, without a broker."),
    ] = None,
    state: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="Edited state to start with.")] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace an existing log. Its records are deleted.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help=help_texts.DRY_RUN)] = False,
    replication: Annotated[
        int | None, typer.Option("--kafka-replication", "--replication", min=1, help=help_texts.KAFKA_REPLICATION)
    ] = None,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Rebuild a lost log from a copy.

    The copy is a metadata service member's or the archive's. Stop all agents and nodes first. The rebuilt cluster is in
    a recovery, which every status shows until LeaveRecovery.
    """
    with _copy_in(place) as copy:
        if export is not None:
            end = end_of(copy)
            write_private(export, json.dumps(exported(end.at.state), indent=2) + "\n")
            return _print_view(
                {"epoch": end.at.state.epoch, "state_id": end.at.state.state_id, "file": str(export)}, as_json
            )
        text = None if state is None else _edited(state)
        plan = planned(copy, operator, reason, lambda end: () if text is None else composed(text, end))
        context = resolve(bootstrap, cluster)
        with closing(KafkaPlace(context.bootstrap, context.cluster, replication)) as where:
            view = _view(plan, where.found(), _acknowledged(context, plan))
            if not dry_run:
                view |= {"topic_id": rebuild(where, plan, replace=replace)}
                accepted = accept_recovery(process_data_dir(), where.name, plan.after.cluster_id, view["topic_id"])
                view |= {"agents_accept": [str(path) for path in accepted]}
    _print_view(view, as_json)


def _edited(state: Path) -> bytes:
    try:
        return read_input(state, STATE_BYTES_MAX)
    except OSError as error:
        raise FileUnusable.of(error, state) from error


@contextmanager
def _copy_in(place: str) -> Iterator[LogCopy]:
    """Return the copy in a node's folder or an archive. A node's folder is locked meanwhile."""
    found = open_location(place)
    folder = found.folder if isinstance(found, FolderLocation) else None
    if folder is not None and (folder / COPY).exists():
        with exclusive_folder(folder):
            try:
                seen = known_epochs_in(folder)
            except NodeFailed as failed:
                fail("node_failed", str(failed))
            yield copy_of_member(folder, seen)
    else:
        yield copy_of_archive(Archive(found))


def _acknowledged(context: ClusterContext, plan: RecoveryPlan) -> Epoch:
    """Return the newest epoch that a node acknowledged; 0 without acknowledgements."""
    try:
        with closing(AcksReader(context.bootstrap, context.cluster)) as acks:
            reported = acks.refresh().values()
    except TopicMissing:
        return 0
    return max((one.applied for one in reported if one.cluster_id == plan.after.cluster_id), default=0)


def _view(plan: RecoveryPlan, there: FoundLog | None, acknowledged: Epoch) -> dict[str, Any]:
    end = plan.end.at.state
    seen = max((acknowledged, end.epoch, *(one.epoch for one in plan.end.lost)))
    return {
        "copy": plan.copy.place,
        "cluster": end.name,
        "cluster_id": end.cluster_id,
        "from_epoch": plan.copy.start.state.epoch,
        "epoch": end.epoch,
        "state_id": end.state_id,
        "lost_epochs": seen - end.epoch,
        "has_gap": plan.end.has_gap,
        "adds": list(plan.commands),
        "fillers": plan.fillers,
        "then_epoch": plan.after.epoch,
        "digest": digest(plan.after),
        "there": None if there is None else {"records": there.records, "cluster_id": there.cluster_id or None},
    }


def _print_view(view: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(view))
        return
    for name, value in view.items():
        out.print(printable(f"{name}: {value}"), markup=False)
    if lost := view.get("lost_epochs"):
        text = f"this copy lacks {lost} epochs that nodes acknowledged: these nodes stop at their next start"
        out.print(printable(text), markup=False)
