"""``ringlog stack``: the commands of the stack, and ``reset``, which also deletes what belongs to the clusters on it.

A cluster whose log is deleted is gone for ever. What its agents and nodes remember of it would only keep the next
cluster of that name from starting on the same files, so it goes with the log: the memory of agents, the folders of
nodes in their usual place, and the cluster among those known. What lies elsewhere (``node run --data``, checkpoints of
the CDC job, the lake) is the user's own.
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
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Stop everything; delete the stack's data and logs, and what agents and nodes remember of the clusters on it."""
    stack = Stack(data)
    try:
        folder, address = stack.status().data_dir, stack.bootstrap_servers
        lost = tuple(context for context in stored_clusters().clusters if context.bootstrap == address)
        paths = [path for context in lost for path in belongings(context)]
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


def belongings(context: ClusterContext) -> list[Path]:
    """Return the existing files and folders, in their usual places, of a cluster that is about to be gone."""
    agents, nodes = process_data_dir() / "agents", process_data_dir() / "nodes"
    if not context.cluster_id:
        return []
    name = f"{context.cluster}.{context.cluster_id}"
    found = [agents / f"{name}.{role}.{kept}" for role in ROLES for kept in ("json", EVIDENCE)]
    return [path for path in (*found, nodes / name) if path.exists()]
