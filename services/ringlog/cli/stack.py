"""``ringlog stack``: the stack's commands, and ``reset``, which also deletes local files of the stack's clusters.

A cluster is lost when its log is deleted. Local files of its agents and nodes would prevent the start of a new cluster
with the same name. So ``reset`` deletes the agents' memory, the nodes' folders in their usual place, and the stored
cluster. Files in other places belong to the user and stay: ``node run --data``, checkpoints of the CDC job, the lake.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Annotated

import typer

from ringlog.files import process_data_dir
from ringlog.log.replicas.state_agreement import EVIDENCE
from ringlog.protocol.roles import ROLES
from ringlog.runtime.context import ClusterContext, remove_clusters, stored_clusters
from ringlog.stack.cli import Data, Json, app, fail
from ringlog.stack.commands import Stack
from ringlog.stack.errors import StackError

__all__ = ["app"]


@app.command()
def reset(
    data: Data = None,
    yes: Annotated[bool, typer.Option("--yes", help="Skip the confirmation.")] = False,
    as_json: Json = False,
) -> None:
    """Delete all data of the stack and of its clusters.

    Stops the stack first. Deletes its data and logs, and the files that agents and nodes of its clusters keep on this
    machine.
    """
    stack = Stack(data)
    try:
        folder, address = stack.status().data_dir, stack.bootstrap_servers
        lost = tuple(context for context in stored_clusters().clusters if context.bootstrap == address)
        paths = [path for context in lost for path in cluster_files(context)]
        if not yes:
            also = "".join(f"\n  {path}" for path in paths)
            asked = f"Delete all data of the stack in {folder}{', and of its clusters:' if also else ''}{also}\n"
            typer.confirm(asked, abort=True, err=True)
        deleted = stack.reset()
    except StackError as error:
        fail(error)
    for path in paths:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    remove_clusters(lambda context: context in lost)
    if as_json:
        names = [{"cluster": context.cluster, "cluster_id": context.cluster_id} for context in lost]
        gone = [str(path) for path in paths]
        typer.echo(json.dumps({"reset": deleted, "data_dir": folder, "clusters": names, "deleted": gone}))
        return
    typer.echo(f"deleted the data in {folder}" if deleted else f"no stack in {folder}")
    for path in paths:
        typer.echo(f"deleted {path}")


def cluster_files(context: ClusterContext) -> list[Path]:
    """Return the existing files and folders of a cluster in their usual places."""
    agents, nodes = process_data_dir() / "agents", process_data_dir() / "nodes"
    if not context.cluster_id:
        return []
    name = f"{context.cluster}.{context.cluster_id}"
    found = [agents / f"{name}.{role}.{kept}" for role in ROLES for kept in ("json", EVIDENCE)]
    return [path for path in (*found, nodes / name) if path.exists()]
