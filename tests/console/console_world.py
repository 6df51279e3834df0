"""A console over a cluster in memory, states of any size, and a strict reader of its pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import httpx
from immutables import Map

from ringlog import commands
from ringlog.client.client import Client
from ringlog.console.app import Console, make_app
from ringlog.console.hub import EpochHub
from ringlog.console.moments import LiveReports, ViewInput
from ringlog.console.oidc import Provider
from ringlog.console.pages import Head, render
from ringlog.console.table import ConsoleView
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.tables import Keyspace, Table
from ringlog.kernel.model.tablet_map import TabletReplica, new_map, uniform_ends
from ringlog.kernel.ownership.placements import new_placement
from ringlog.kernel.ownership.strategies import replication_key
from ringlog.kernel.values import CdcOptions, Column, Replication, TabletOptions, replace
from ringlog.operator.rehearsal.rehearsal import acknowledgements
from ringlog.protocol.balancer.load_book import SILENT_US, LastReports
from ringlog.protocol.roles import ROLES
from ringlog.testing import FakeCluster
from ringlog.wire.records import AgentStatus
from tests.kernel import entries

ORIGIN = "http://127.0.0.1:8080"
NOW = 1_700_000_100_000_000


def large_state(nodes: int, tablets: int = 64, tables: int = 1) -> ClusterState:
    """Return a cluster of ``nodes`` nodes in 3 racks of 2 datacenters, on the ring and in tablets."""
    state = entries.with_normal_nodes(entries.founded(), nodes)
    step = 2**64 // (nodes * 8)
    members = sorted(state.nodes.values(), key=lambda node: node.registered)
    directory, owners = state.nodes, {}
    for number, node in enumerate(members):
        tokens = tuple(-(2**63) + 1 + step * (place * nodes + number) for place in range(8))
        place = {"datacenter": f"dc{number % 2}", "rack": f"r{number % 3}"}
        directory = directory.set(node.id, replace(node, tokens=tokens, shards=4, release=f"1.{number % 2}", **place))
        owners |= dict.fromkeys(tokens, node.id)
    token_owners = Map(owners)
    ring, in_tablets = Replication("simple", min(3, nodes)), Replication("tablets", min(3, nodes))
    keyspaces = {"ring": Keyspace("ring", ring, "v", made=1), "fleet": Keyspace("fleet", in_tablets, "v", made=1)}
    maps, defined = state.tablets, state.tables
    columns = (Column("k", "text"), Column("v", "text"))
    for number in range(tables):
        name = f"t{number}"
        replicas = [
            [TabletReplica(members[(index + copy) % nodes].id, index % 4, 1) for copy in range(min(3, nodes))]
            for index in range(tablets)
        ]
        maps = maps.set(f"fleet.{name}", new_map(f"fleet.{name}", uniform_ends(tablets), replicas, 1))
        table = Table(
            entries.uuid(number, 7), "fleet", name, columns, ("k",), (), CdcOptions(), "v", 1, tablets=TabletOptions()
        )
        defined = defined.set(table.full_name, table)
    return replace(
        state,
        nodes=directory,
        token_owners=token_owners,
        keyspaces=Map(keyspaces),
        tables=defined,
        tablets=maps,
        placements=Map({replication_key(ring): new_placement(ring, token_owners, directory, 1)}),
    )


def reports(state: ClusterState, silent: str = "") -> LiveReports:
    """Return reports of nodes and agents that work; ``silent`` names a node that has not reported for a while."""
    heard = {node.id: NOW - (SILENT_US if node.name == silent else 0) for node in state.nodes.values()}
    agents = {role: AgentStatus(role, "i", 1, state.epoch, "active", NOW) for role in ROLES}
    return LiveReports(
        version=1,
        read_at=NOW,
        confirmed_at=NOW,
        acks=acknowledgements(state, NOW),
        agents=agents,
        last_reports=LastReports(heard, NOW),
    )


def view_input(state: ClusterState, live: LiveReports | None = None, **query: Any) -> ViewInput:
    """Return the input of a view. The log has no records."""
    found = reports(state) if live is None else live
    return ViewInput(state, found, NOW, query, lambda *_: ((), 1), lambda _: state)


HEAD = Head("shop at broker", 1, {"epoch": 1, "version": 1, "age_s": 0.0, "problem": ""}, "ann", True, True, "/x", "")


def page_of(view: ConsoleView, at: ViewInput) -> str:
    """Return the page of a view."""
    return render(view, at, view.read(at), HEAD).decode()


@dataclass
class World:
    """A cluster in memory, a console over it, and an HTTP client."""

    cluster: FakeCluster
    client: Client
    hub: EpochHub
    http: httpx.AsyncClient
    live: list[LiveReports] = field(default_factory=list)
    provider: Provider | None = None


@contextmanager
def hub_of(cluster: FakeCluster) -> Iterator[tuple[Client, EpochHub]]:
    """Open a client and the records that the console keeps."""
    with cluster.client("console") as client:
        hub = EpochHub(client)
        hub.fill()
        try:
            yield client, hub
        finally:
            hub.close()


@contextmanager
def console_of(
    cluster: FakeCluster,
    users: Mapping[str, str] | None = None,
    *,
    allows_changes: bool = False,
    provider: Provider | None = None,
) -> Iterator[World]:
    """Serve a console over a cluster in memory. ``users``: token to name."""
    with hub_of(cluster) as (client, hub):
        live = [LiveReports(version=1, read_at=hub.state.time, confirmed_at=hub.state.time)]

        def open_client(person: str) -> Client:
            return cluster.client("console", on_behalf=person)

        console = Console(
            hub,
            "tests at memory",
            lambda: live[-1],
            cluster.clock.now_us,
            open_client if allows_changes else None,
            None if users is None else lambda: users,
            provider=provider,
            has_tokens=bool(users),
        )
        transport = httpx.ASGITransport(make_app(console))  # type: ignore[arg-type]
        yield World(cluster, client, hub, httpx.AsyncClient(transport=transport, base_url=ORIGIN), live, provider)


def three_nodes() -> FakeCluster:
    """Return a cluster of three nodes with a keyspace."""
    cluster = FakeCluster()
    cluster.add_nodes(3, datacenter="dc1", rack="r1")
    with cluster.client("setup") as client:
        client.submit(commands.create_keyspace("app", 3))
    cluster.settle()
    return cluster


VOID = {"meta", "link", "input", "br"}


class StrictReader(HTMLParser):
    """A parser that fails for unbalanced elements. ``shape``: each element with its attribute names, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.shape: list[tuple[str, tuple[str, ...]]] = []
        self.words: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.shape.append((tag, tuple(name for name, _ in attrs)))
        self.ids += [value or "" for name, value in attrs if name == "id"]
        assert not any(name == "style" or name.startswith("on") for name, _ in attrs), (tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def read_page(text: str) -> StrictReader:
    """Parse a page. Fails if it is not well-formed."""
    reader = StrictReader()
    reader.feed(text)
    reader.close()
    assert reader.open == [], f"not closed: {reader.open}"
    assert len(reader.ids) == len(set(reader.ids)), f"ids appear twice: {sorted(reader.ids)}"
    return reader
