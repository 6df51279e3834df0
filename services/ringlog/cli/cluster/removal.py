"""``ringlog cluster forget|delete``: remove a cluster from this machine, or everywhere.

The user confirms a deletion by the cluster's id, which the broker's log contains. So a newer cluster of the same name,
or one at another broker, is not deleted by mistake. An interrupted deletion can be repeated.
"""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from ringlog.agents.status import SILENT_S, read_statuses, view
from ringlog.cli.cluster.contexts import known_cluster
from ringlog.cli.shared.connection import Bootstrap, Json, fail, out, resolve
from ringlog.cli.shared.options import newest
from ringlog.cli.stack import cluster_files
from ringlog.client.creation.deletion import cluster_at, delete_topics
from ringlog.client.participant.folder import LOCK, exclusive_folder
from ringlog.extras import require
from ringlog.log.errors import LogError
from ringlog.operator.balancing import last_heard
from ringlog.operator.views import views
from ringlog.runtime.clock import SystemClock
from ringlog.runtime.context import ClusterContext, remove_clusters, stored_clusters

PROBE_S = 1.0


def register(app: typer.Typer) -> None:
    """Add the commands to ``ringlog cluster``."""
    app.command("forget")(forget)
    app.command("delete")(delete)


def forget(
    name: Annotated[str, typer.Argument(help="Name or id of the cluster, or the beginning of its id.")],
    yes: Annotated[bool, typer.Option("--yes", help="Skip the confirmation.")] = False,
    as_json: Json = False,
) -> None:
    """Forget a cluster and delete its files on this machine.

    The files are the memory of agents and the folders of nodes in their usual place: rows, and copies of the log.
    The broker and Redis keep everything. Stop the agents and nodes of this machine first.
    """
    context = known_cluster(name)
    with _unused_files(context) as paths:
        if not yes:
            listed = "".join(f"\n  {path}" for path in paths)
            what = f"Forget the cluster {context.cluster} {context.cluster_id} at {context.bootstrap}"
            typer.confirm(what + (f", and delete:{listed}\n" if paths else "?"), abort=True, err=True)
        _delete_files(paths)
    remove_clusters(lambda one: one == context)
    _report(context, {"deleted": [*map(str, paths)]}, as_json)


def delete(
    name: Annotated[
        str, typer.Argument(help="Name or id of the cluster, or the beginning of its id. With --bootstrap: its name.")
    ],
    bootstrap: Bootstrap = None,
    yes_delete: Annotated[
        str, typer.Option("--yes-delete", metavar="ID", help="Id of the cluster, as the confirmation.")
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Delete even if agents or nodes answer.")] = False,
    as_json: Json = False,
) -> None:
    """Delete a cluster.

    Deletes its topics, its Redis keys, and its files on this machine. You confirm it by the cluster's id. Repeat the
    command if it was interrupted. ACLs and files on other machines stay.
    """
    context = known_cluster(name) if bootstrap is None else ClusterContext(bootstrap, name, "")
    context = resolve(context.bootstrap, context.cluster)
    if context.redis:
        require("redis")
    here = [one for one in stored_clusters().clusters if _place(one) == _place(context)]
    stored = here[0].cluster_id if here else ""
    found = cluster_at(*_place(context))
    cluster_id = found.cluster_id or stored
    if found.cluster_id and stored not in ("", found.cluster_id):
        way = f"To delete that one: ringlog cluster use {context.cluster} --bootstrap {context.bootstrap}, then repeat."
        fail("another_cluster", f"the broker has {found.cluster_id}, this machine knows {stored}", ways_out=[way])
    if not found.topics and not here:
        fail("unknown_cluster", f"{context.bootstrap} has no topic of {context.cluster}")
    if found.denied:
        text = f"this login may not delete {', '.join(found.denied)}; nothing was deleted"
        fail("no_right_to_delete", text, ways_out=["Use the login of an administrator: --kafka-config FILE"])
    answering = [] if force or not found.topics else list(_answering(context))
    if answering:
        fail("cluster_in_use", "; ".join(answering), ways_out=["Stop them, or pass --force."])
    with _unused_files(ClusterContext(*_place(context), "", cluster_id=cluster_id)) as paths:
        _confirm(context, cluster_id, found.topics, paths, yes_delete)
        if cluster_at(*_place(context)) != found:
            fail("another_cluster", "the cluster changed during the confirmation; nothing was deleted")
        keys = _delete_cache(context, cluster_id)
        left = delete_topics(*_place(context), found.topics, _silent if as_json else _print_topic)
        if left:
            fail(
                "cluster_in_use",
                f"running processes created topics again: {', '.join(left)}. Stop them, then repeat the command",
            )
        # Again: with --force, a running cache writer may have written keys while the topics were deleted.
        keys = max(keys, _delete_cache(context, cluster_id))
        _delete_files(paths)
    remove_clusters(lambda one: one in here)
    facts = {"topics": [*found.topics], "redis_keys": keys, "deleted": [*map(str, paths)]}
    _report(ClusterContext(*_place(context), "", cluster_id=cluster_id), facts, as_json)


def _silent(_topic: str) -> None:
    """Do nothing: with ``--json`` all topics are printed at the end."""


def _print_topic(topic: str) -> None:
    out.print(f"deleted topic {topic}", markup=False)


def _place(context: ClusterContext) -> tuple[str, str]:
    return context.bootstrap, context.cluster


def _confirm(
    context: ClusterContext, cluster_id: str, topics: Sequence[str], paths: Sequence[Path], given: str
) -> None:
    """Have the user type the id; a cluster without a known id is confirmed by its name."""
    wanted = cluster_id or context.cluster
    if not given:
        redis = [f"the keys of {context.cluster} in Redis"] if context.redis else []
        lines = "".join(f"\n  {one}" for one in (*map("topic {}".format, topics), *redis, *paths))
        typer.echo(f"Delete the cluster {context.cluster} {cluster_id} at {context.bootstrap}:{lines}", err=True)
        given = typer.prompt(f"Type {wanted} to delete all of it", err=True)
    if given.strip() != wanted:
        why = "" if cluster_id else " (its id is unknown, because its log is lost)"
        fail("not_confirmed", f"the cluster is {wanted}{why}, not {given.strip()[:40]}; nothing was deleted")


def _answering(context: ClusterContext) -> Iterator[str]:
    """Yield agents that reported recently, and nodes that accept a connection or may run on another machine."""
    now = SystemClock().now_us()
    with suppress(LogError):
        for said in read_statuses(*_place(context)).values():
            if said.state != "halted" and view(said, said.epoch, now).age_s < SILENT_S:
                yield f"an agent runs: {said.role}"
    with suppress(LogError):
        for node in views.nodes(newest(context), last_heard(*_place(context))):
            if node["state"] == "left":
                continue
            host, _, port = node["address"].rpartition(":")
            try:
                socket.create_connection((host.strip("[]"), int(port)), PROBE_S).close()
                yield f"node {node['name']} answers at {node['address']}"
            except ConnectionRefusedError:
                continue
            except (OSError, ValueError):
                if node["heard_age_s"] is not None and not node["silent"]:
                    yield f"node {node['name']} was heard {node['heard_age_s']:.0f} s ago"


def _delete_cache(context: ClusterContext, cluster_id: str) -> int:
    """Delete the cluster's keys in Redis and return their number. Keys of another cluster with this name stay."""
    if not context.redis:
        return 0
    from ringlog.cache.port import CacheUnavailable  # Redis is slow to load
    from ringlog.cache.redis_cache import RedisCache

    try:
        with closing(RedisCache(context.redis, context.cluster)) as cache:
            return cache.delete(cluster_id)
    except CacheUnavailable as error:
        way = "Start Redis and repeat the command, or keep the keys: RINGLOG_REDIS_URL= ringlog cluster delete …"
        fail("cache_unavailable", str(error), ways_out=[way])


@contextmanager
def _unused_files(context: ClusterContext) -> Iterator[list[Path]]:
    """Yield the cluster's files on this machine, locked so that no node runs from them. Raises CopyInUse."""
    paths = cluster_files(context)
    with ExitStack() as locks:
        for folder in (path for path in paths if path.is_dir()):
            for lock in folder.glob(f"*/{LOCK}"):
                locks.enter_context(exclusive_folder(lock.parent))
        yield paths


def _delete_files(paths: Sequence[Path]) -> None:
    for path in paths:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _report(context: ClusterContext, facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"cluster": context.cluster, "cluster_id": context.cluster_id} | facts))
        return
    if facts.get("redis_keys"):
        out.print(f"deleted {facts['redis_keys']} keys in Redis")
    for path in facts["deleted"]:
        out.print(f"deleted {path}", markup=False)
    out.print(
        f"the cluster {context.cluster} {context.cluster_id} is {'deleted' if 'topics' in facts else 'forgotten'}"
    )
