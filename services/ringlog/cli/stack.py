"""``ringlog stack``: the commands of the stack, and ``reset``, which also deletes what belongs to the clusters on it.

A cluster whose log is deleted is gone for ever. What its agents and nodes remember of it would only keep the next
cluster of that name from starting on the same files, so it goes with the log: the memory of agents, the folders of
nodes in their usual place, and the cluster among those known. What lies elsewhere (``node run --data``, checkpoints of
the CDC job, the lake) is the user's own.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from ringlog.log.agreement import EVIDENCE
from ringlog.protocol.roles import ROLES
from ringlog.runtime.context import ClusterContext, forget, known
from ringlog.runtime.folders import default_data_dir
from ringlog.runtime.settings import ProcessSettings
from ringlog.stack.cli import Data, Json, app, fail
from ringlog.stack.commands import Stack
from ringlog.stack.errors import StackError

__all__ = ["app"]

ACKNOWLEDGED = "acknowledged.json"


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
        lost = tuple(context for context in known().clusters if context.bootstrap == address)
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
    forget(lambda context: context in lost)
    if as_json:
        names = [{"cluster": context.cluster, "cluster_id": context.cluster_id} for context in lost]
        gone = [str(path) for path in paths]
        typer.echo(json.dumps({"reset": deleted, "data_dir": folder, "clusters": names, "deleted": gone}))
        return
    typer.echo(f"deleted the data in {folder}" if deleted else f"no stack in {folder}")
    for path in paths:
        typer.echo(f"deleted {path}")


def belongings(context: ClusterContext) -> list[Path]:
    """Files and folders, in their usual places, of a cluster that is about to be gone.

    What release 0.1.0 kept by name only is the cluster's if it says so, or if no other known cluster has the name.
    """
    agents, nodes = ProcessSettings().data_dir / "agents", default_data_dir() / "nodes"
    with_id = f"{context.cluster}.{context.cluster_id}"
    found: list[Path] = []
    if context.cluster_id:
        found += [agents / f"{with_id}.{role}.{kept}" for role in ROLES for kept in ("json", EVIDENCE)]
        found.append(nodes / with_id)
    namesakes = [other for other in known().clusters if other.cluster == context.cluster and other != context]
    if not namesakes:
        found += [agents / f"{context.cluster}.{role}.json" for role in ROLES]
    found += [node for node in _folders(nodes / context.cluster) if _is_of(node, context, bool(namesakes))]
    return [path for path in found if path.exists()]


def _folders(parent: Path) -> Iterator[Path]:
    return (path for path in sorted(parent.glob("*")) if path.is_dir())


def _is_of(node: Path, context: ClusterContext, has_namesakes: bool) -> bool:
    """Is it a node of this cluster? One that acknowledged nothing yet does not say."""
    try:
        found: Any = json.loads((node / ACKNOWLEDGED).read_bytes())["cluster_id"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return not has_namesakes
    return bool(found == context.cluster_id) if context.cluster_id else not has_namesakes
