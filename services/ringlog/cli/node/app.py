"""``ringlog node``: run a reference node, list the nodes, and change them (``cli.node.movements``)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

import ringlog
from ringlog.cli import help as help_texts
from ringlog.cli.node import movements as node_movements
from ringlog.cli.node.discovery import Meet, Seeds, in_cluster
from ringlog.cli.shared.connection import Bootstrap, Cluster, connect, fail
from ringlog.cli.shared.options import newest, view_command
from ringlog.cli.shared.tables import show_fields, show_table
from ringlog.client.creation.creation import cluster_id_of_log
from ringlog.extras import require
from ringlog.files import private_process, process_data_dir
from ringlog.log.kafka.diagnosis import reject_refused_login
from ringlog.log.opening import start_point_finder
from ringlog.log.replicas.replay import log_progress
from ringlog.operator.balancing import last_heard
from ringlog.operator.intents.intents import NUM_TOKENS
from ringlog.operator.node_details import node_details, owned_shares
from ringlog.operator.views import views
from ringlog.operator.views.words import format_node_state
from ringlog.runtime.clock import SystemClock
from ringlog.runtime.context import ClusterContext
from ringlog.runtime.logs import setup_logs
from ringlog.runtime.monitoring.open_connections import raise_file_limit
from ringlog.runtime.monitoring.scrape import ANYWHERE
from ringlog.runtime.process import stop_on_signals
from ringlog.runtime.trust import (
    CertificateOfAnotherNode,
    certificate_source,
    check_listen_address,
    current,
    name_of_node,
)

app = typer.Typer(no_args_is_help=True)


Listen = Annotated[str, typer.Option(envvar="RINGLOG_LISTEN", help="Address to listen on. 0.0.0.0: all interfaces.")]
Advertise = Annotated[
    str, typer.Option(envvar="RINGLOG_ADVERTISE", help="Address of the node for others. Default: the listen address.")
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        envvar="RINGLOG_INSECURE",
        help="Listen without certificate and token. Any client that reaches the address has full access.",
    ),
]


@app.command("run")
def run(
    name: Annotated[str, typer.Argument(help="Name of the node, never reused in the cluster.")],
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder of all nodes. Default: `nodes` in RINGLOG_DATA_DIR.")
    ] = None,
    listen: Listen = "127.0.0.1",
    advertise: Advertise = "",
    port: Annotated[int, typer.Option(help="HTTP port. 0: the previous port, or a free one.")] = 0,
    data_port: Annotated[
        int, typer.Option(help="gRPC port. 0: the previous port. If the port is in use, a free one is chosen.")
    ] = 0,
    insecure: Insecure = False,
    datacenter: Annotated[str, typer.Option(help="Name of the datacenter.")] = "dc1",
    rack: Annotated[str, typer.Option(help="Name of the rack.")] = "r1",
    shards: Annotated[int, typer.Option(help=help_texts.SHARDS, min=1, max=4096)] = 2,
    join: Annotated[bool, typer.Option("--join", help="Join the cluster after the registration.")] = False,
    tokens: Annotated[
        int, typer.Option("--num-tokens", "--tokens", help=help_texts.NUM_TOKENS, min=1, max=1024)
    ] = NUM_TOKENS,
    meet: Meet = None,
    seeds: Seeds = "",
) -> None:
    """Run a node in the foreground until it is stopped.

    The node registers, joins with --join, stores the rows of its ranges and acknowledges epochs. With
    --discovery-address and --seeds, nodes find each other before a cluster exists, and one of them creates it.
    """
    require("node")
    from ringlog.client.participant.retry import retry_until_answered
    from ringlog.node.identity import folder_of
    from ringlog.node.process import NodeFailed, NodeOptions, NodeProcess  # an extra: the node's web server

    private_process()
    raise_file_limit()
    setup_logs()
    stopping = threading.Event()
    stop_on_signals(stopping)
    nodes = data or process_data_dir() / "nodes"
    with in_cluster(bootstrap, cluster, name, nodes, meet, seeds, insecure, stopping) as context:
        if context is None:
            return
        certified, place = _guarded(listen, advertise, insecure), (context.bootstrap, context.cluster)
        with closing(connect(context, f"node-{name}", log_progress, is_relaxed=True)) as client:
            cluster_id = retry_until_answered(
                partial(cluster_id_of_log, client.replica.log, start_finder=start_point_finder(*place)),
                stopping,
                partial(reject_refused_login, context.bootstrap),
            )
            if cluster_id is None:
                return
            try:
                folder = folder_of(nodes, context.cluster, cluster_id, name)
                where = advertise, data_port, certified
                options = NodeOptions(name, listen, port, datacenter, rack, shards, folder, *where)
                process = NodeProcess(options, client, *place, cluster_id, SystemClock(), stopping)
                process.run(ringlog.__version__, ringlog.FEATURES, tokens if join else None)
            except NodeFailed as failed:
                fail(failed.code, str(failed))


def _guarded(listen: str, advertise: str, insecure: bool) -> str:
    """Return the node that this process's certificate names; empty without a certificate.

    Raises BadTrustConfig if the process may not listen on the address.
    """
    trust = current()
    check_listen_address(listen, trust, insecure=insecure)
    if trust.encrypts and not trust.node:
        text = f"{certificate_source()} names no node; a node needs the dNSName {name_of_node('<node id>')}. "
        raise CertificateOfAnotherNode(f"{text}Pass --trust-config with the file of this node")
    if not advertise and listen in ANYWHERE:
        fail("bad_usage", f"--listen {listen} needs --advertise, the address of the node for other machines", 2)
    return trust.node


@app.command("list")
@view_command
def list_nodes(context: ClusterContext) -> Iterator[Any]:
    """List all registered nodes.

    Each row has the state of the node and the age of its last report.
    """
    state = newest(context)
    found = views.nodes(state, last_heard(context.bootstrap, context.cluster))
    yield found
    columns = ("node", "state", "heard", "tokens", "shards", "address", "datacenter", "rack", "release", "id")
    rows = []
    for row in found:
        words = *format_node_state(row), str(len(row["tokens"])), str(row["shards"])
        rows.append((row["name"], *words, *(row[name] for name in columns[5:])))
    show_table(columns, rows, "no nodes")


@app.command("show")
@view_command
def show_node(context: ClusterContext, node: node_movements.Node) -> Iterator[Any]:
    """Show one node, its data and the effect of its removal."""
    state = newest(context)
    found = state.nodes.get(state.node_names.get(node, node))
    if found is None:
        fail("unknown_node", f"{node[:100]} is not a node: see ringlog node list")
    rows = views.nodes(state, last_heard(context.bootstrap, context.cluster))
    view = node_details(state, found, next(row for row in rows if row["id"] == found.id))
    view["owns"] = round(owned_shares(state).get(found.id, 0.0), 4)
    yield view
    removal = view["removal"]
    show_fields(
        view
        | {
            "tokens": len(view["tokens"]),
            "ranges": [f"{one['keyspace']} {one['ranges']}" for one in view["ranges"]],
            "tablets": [f"{one['table']} {one['replicas']}" for one in view["tablets"]],
            "owns": f"{view['owns']:.2%} of the ring",
            "removal": removal
            and (f"{removal['code']}: {removal['detail']}" if removal["code"] else removal["command"]),
        }
    )


node_movements.register(app)
