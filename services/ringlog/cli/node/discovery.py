"""``ringlog node run --discovery-address``: a node discovers its cluster (``ringlog.client.creation.discovery``)."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ringlog.cli.shared.connection import broker_of, fail, resolve
from ringlog.client.creation.creation import cluster_id_of_log, create_cluster
from ringlog.client.errors import ClusterNotCreated
from ringlog.client.participant.retry import BrokerRetry
from ringlog.kernel.values import replace
from ringlog.log.errors import TopicMissing
from ringlog.log.kafka.diagnosis import reject_refused_login
from ringlog.log.opening import open_metadata, start_point_finder
from ringlog.runtime import trust
from ringlog.runtime.context import ClusterContext
from ringlog.runtime.kafka.config import VARIABLE
from ringlog.runtime.logs import get_logger
from ringlog.runtime.trust import TRUST_VARIABLE, check_listen_address

FOLDER = ".discovery"
"""The folder next to those of clusters. No cluster name can begin with a dot."""
Meet = Annotated[
    str | None,
    typer.Option("--discovery-address", "--meet", help="Address for the discovery requests of other nodes."),
]
Seeds = Annotated[str, typer.Option(help="Discovery addresses of the first nodes to ask.")]

log = get_logger("ringlog.node")


@contextmanager
def in_cluster(
    bootstrap: str | None,
    cluster: str | None,
    node: str,
    nodes: Path,
    meet: str | None,
    seeds: str,
    insecure: bool,
    stopping: threading.Event,
) -> Iterator[ClusterContext | None]:
    """Yield the cluster of a node, after a discovery if ``meet`` is given; None if the process must stop.

    Other nodes are answered until the context ends. ``nodes``: the folder of all nodes.
    """
    if meet is None:
        if seeds:
            fail("bad_usage", "--seeds needs --discovery-address, at which the other nodes reach this node", 2)
        yield resolve(bootstrap, cluster)
        return
    check_listen_address(meet.rpartition(":")[0], trust.current(), insecure=insecure)
    from ringlog.client.creation.discovery import Discovery  # Slow to load, and only needed here.

    broker = broker_of(bootstrap)
    files = {"kafka_config": os.environ.get(VARIABLE, ""), "trust_config": os.environ.get(TRUST_VARIABLE, "")}
    context = ClusterContext(broker.bootstrap, cluster or "", broker.redis, **files)
    asked = filter(None, map(str.strip, seeds.split(",")))
    retries = BrokerRetry("the metadata log", stopping, partial(reject_refused_login, context.bootstrap))

    def existing(name: str) -> str:
        return retries.until_answered(lambda: founded_id(context.bootstrap, name)) or ""

    def found(name: str) -> None:
        retries.until_answered(lambda: create_cluster(context.bootstrap, name, submitter=f"node-{node}"))

    def on_progress(why: str) -> None:
        log.info("no_cluster_yet", why=why)

    with Discovery(nodes / FOLDER / node, context.cluster, meet, asked) as discovering:
        name, cluster_id = discovering.settle(
            existing, found, stopping, lambda why: log.info("no_cluster_yet", why=why)
        )
        if cluster_id:
            log.info("cluster_met", cluster=name, cluster_id=cluster_id)
        yield replace(context, cluster=name) if cluster_id else None


def founded_id(bootstrap: str, cluster: str) -> str:
    """Return the id of the cluster with this name at a broker; empty if there is none.

    Raises LogUnavailable, LogDamaged.
    """
    with closing(open_metadata(bootstrap, cluster, "discovery")) as metadata:
        try:
            return cluster_id_of_log(metadata, start_finder=start_point_finder(bootstrap, cluster, warns=False))
        except (ClusterNotCreated, TopicMissing):
            return ""
