"""Every view as a page and as JSON, at 3 and at 100 nodes: well-formed, and without markup from its input."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from itertools import chain

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from immutables import Map

from ringlog import commands
from ringlog.client.cdc.dead_letters import LetterSummary
from ringlog.console import drawing
from ringlog.console.live import mutations_behind
from ringlog.console.table import VIEWS
from ringlog.console.views import placement
from ringlog.console.views.levels import with_commands
from ringlog.console.views.operations import remaining
from ringlog.console.views.placement import ADVISED_MAX
from ringlog.kernel.balance.advice import advise, report_basis
from ringlog.kernel.balance.reports import LoadReport, Reports, fold_report
from ringlog.kernel.model.modes import Pause
from ringlog.kernel.model.plans import StagedPlan
from ringlog.kernel.model.state import CdcWriter, ClusterState, Failure, Operation, Plan, StageMark
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.values import SECOND_US, Position, replace
from ringlog.operator.doctor import Finding
from ringlog.operator.machines import Machine, machines_of
from ringlog.protocol.balancer.load_book import ReceivedLoad
from ringlog.wire.records import NodeLoad
from tests.console.console_world import (
    NOW,
    console_of,
    large_state,
    page_of,
    read_page,
    reports,
    three_nodes,
    view_input,
)
from tests.kernel import entries

STATES = {3: large_state(3), 100: large_state(100)}
LINKED = {"node": "n2", "zone": "z", "plan": "p", "operation": "join-9"}


@pytest.mark.parametrize("nodes", STATES)
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_json_and_a_well_formed_page(name: str, nodes: int) -> None:
    view, state = VIEWS[name], STATES[nodes]
    given_query = {key: value for key, value in LINKED.items() if key in view.parameters}
    for live in (reports(state), reports(state, silent="n2")):
        at = view_input(state, live, **given_query)
        assert json.loads(json.dumps(view.read(at))) == view.read(at)
        page = read_page(page_of(view, at))
        assert view.title in page.words
        assert page.shape.count(("main", ("id", "tabindex"))) == 1
        assert [tag for tag, _ in page.shape].count("h1") == 1
    past = replace(view_input(state, **given_query), is_past=True)
    assert "past" in page_of(view, past)


@pytest.mark.parametrize("name", VIEWS)
def test_the_twins_of_a_page_have_the_same_value(name: str) -> None:
    async def ask() -> None:
        with console_of(three_nodes()) as world:
            for query in ("", "?epoch=20"):
                first = await world.http.get(f"/v1/{name}{query}")
                assert first.status_code == 200, first.text
                assert (await world.http.get(f"/{name}.json{query}")).json() == first.json()
                page = await world.http.get(f"/{name}{query}")
                assert page.status_code == 200
                assert page.headers["content-type"] == "text/html; charset=utf-8"
                assert ('class="past"' in page.text) == bool(query)
                read_page(page.text)

    asyncio.run(ask())


# ------------------------------------------------------------------------------------------------- hostile text


def hostile(text: str) -> ClusterState:
    """Return a state with a text wherever a user, a node or a program chooses one, even where the rules forbid it."""
    state = large_state(3)
    nodes = state.nodes
    for node in state.nodes.values():
        name = f"{text}{node.name}"
        nodes = nodes.set(
            node.id,
            replace(
                node, name=name, address=text, rack=text, datacenter=text, release=text, down=True, down_reason=text
            ),
        )
    leaving = next(node for node in nodes.values() if node.name.endswith("n2"))
    nodes = nodes.set(leaving.id, replace(leaving, state="leaving"))
    leave = Operation(
        "leave-9", "leave", leaving.id, (), b"", "requested", 3, Plan(), (), None,
        (StageMark("requested", 3, NOW),), (), text, failures=(Failure(3, text, leaving.id),),
    )  # fmt: skip
    writer = CdcWriter(text, "i", 1, NOW, NOW, NOW, (), (), None, "", text)
    keyspace = state.keyspaces["ring"]
    table = state.tables["fleet.t0"]
    return replace(
        state,
        name=text,
        nodes=nodes,
        node_names=Map({node.name: node.id for node in nodes.values()}),
        keyspaces=state.keyspaces.set(text, replace(keyspace, name=text)),
        tables=Map({"fleet.t0": replace(table, columns=(replace(table.columns[0], name=text, type=text),))}),
        operations=Map({"leave-9": leave}),
        writers=Map({text: writer}),
        pauses=Map({"schema/": Pause("schema", "", text, 2)}),
        plans=Map({text: StagedPlan(text, (), text, 2, NOW)}),
    )


def shape(text: str, name: str) -> list[tuple[str, tuple[str, ...]]]:
    state = hostile(text)
    query = {"node": f"{text}n2", "plan": text, "operation": "leave-9"}
    chosen = {key: value for key, value in query.items() if key in VIEWS[name].parameters}
    return read_page(page_of(VIEWS[name], view_input(state, reports(state), **chosen))).shape


MARKUP = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{ 7 * 7 }}",
    "' onload='x",
    "</title><b>",
    "&lt;b&gt;",
    "\x1b]0;x\x07",
)


@pytest.mark.parametrize("name", VIEWS)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=st.sampled_from(MARKUP) | st.text("<>\"'&{}%=/ab\x00\x1b\u202e", min_size=1, max_size=20))
def test_no_text_changes_the_elements_of_a_page(name: str, text: str) -> None:
    assert shape(text, name) == shape("x", name)


@settings(deadline=None)
@given(st.text())
def test_a_sentence_keeps_its_text_when_its_commands_are_marked(text: str) -> None:
    pieces = list(with_commands(text))
    assert "".join(piece for piece, _ in pieces).replace("`", "") == text.replace("`", "")


def test_commands_are_found_in_advice() -> None:
    text = 'if n1 is lost: ringlog node down n1, then ringlog submit \'{"command": "X, Y"}\' (rows may be lost)'
    found = [piece for piece, is_command in with_commands(text) if is_command]
    assert found == ["ringlog node down n1", 'ringlog submit \'{"command": "X, Y"}\'']


# ------------------------------------------------------------------------------------------------- single views


def test_health_names_the_cause_and_a_command_for_each_red_number() -> None:
    state = large_state(3)
    found = VIEWS["health"].read(view_input(state, reports(state, silent="n2")))
    assert found["verdict"] == "CRITICAL"
    (row,) = found["reasons"]
    assert row["text"].startswith("node n2 is silent: last heard")
    assert (row["level"], row["page"]) == ("bad", "nodes")
    assert row["next"] == "start n2 again. If it is permanently lost: ringlog node down n2"
    assert row["query"] == {"node": "n2"}
    assert VIEWS["health"].read(view_input(state))["verdict"] == "OK"


def test_the_advice_for_a_pause_is_its_end() -> None:
    state = entries.applied(large_state(3), commands.PauseChanges(("splits",), "fleet", "maintenance"))
    (row,) = VIEWS["health"].read(view_input(state))["reasons"]
    assert (row["level"], row["next"]) == ("warn", "ringlog resume splits --of fleet")
    for name in ("clocks", "tablets"):
        assert "ringlog resume splits --of fleet" in page_of(VIEWS[name], view_input(state))


def test_health_is_critical_while_the_log_cannot_be_read() -> None:
    state = large_state(3)
    found = VIEWS["health"].read(view_input(state, replace(reports(state), problem="log_unavailable: no answer")))
    assert (found["verdict"], found["reasons"][0]["text"]) == (
        "CRITICAL",
        "the log is not readable: log_unavailable: no answer",
    )


def test_a_death_is_counted_by_the_ranges_that_lose_their_quorum() -> None:
    state = large_state(3)
    view = VIEWS["availability"]
    whole = view.read(view_input(state))
    assert [(row["keyspace"], row["full"], row["ranges"]) for row in whole["keyspaces"]] == [
        ("fleet", 64, 64),
        ("ring", 24, 24),
    ]
    assert (whole["critical"], whole["level"]) == ([], "ok")
    one = view.read(view_input(state, reports(state, silent="n2")))
    assert [row["degraded"] for row in one["keyspaces"]] == [64, 24]
    assert [(row["node"], row["ranges"]) for row in one["critical"]] == [("n1", 88), ("n3", 88)]
    second = next(node for node in state.nodes.values() if node.name == "n1")
    down = replace(state, nodes=state.nodes.set(second.id, replace(second, down=True)))
    two = view.read(view_input(down, reports(down, silent="n2")))
    assert (two["level"], [row["no_quorum"] for row in two["keyspaces"]]) == ("bad", [64, 24])
    assert two["keyspaces"][0]["consistency"] == {"ONE": 64, "QUORUM": 0, "ALL": 0}


def test_the_shares_of_a_ring_add_up() -> None:
    for state in STATES.values():
        found = VIEWS["nodes"].read(view_input(state, limit=1_000))
        assert sum(row["owns"] for row in found["nodes"]["rows"]) == pytest.approx(1, abs=0.01)
        assert sum((arc["end"] - arc["start"]) % 1 for arc in found["ring"]) == pytest.approx(1)


def test_a_node_shows_its_lag_and_its_bytes_where_it_reports_them() -> None:
    state = large_state(3)
    node, table = state.node_names["n2"], state.tables["fleet.t0"].id
    report = LoadReport(node, NOW, 5 << 20, {"bytes": {table: {0: 3 << 20}}}, {table: 64})
    loads = fold_report(Reports(), report, NOW, report_basis(state))
    live = replace(reports(state), loads=loads, mutations_behind={node: 7})
    view = VIEWS["nodes"]
    rows = {row["name"]: row for row in view.read(view_input(state, live))["nodes"]["rows"]}
    assert [rows[name]["mutations_behind"] for name in ("n1", "n2")] == [None, 7]
    page = page_of(view, view_input(state, live, node="n2"))
    assert ("7 behind at its last report" in page, "3.0 MiB of 5.0 MiB" in page) == (True, True)
    assert "not reported yet" in page_of(view, view_input(state, live, node="n1"))


def test_the_lag_of_a_node_is_that_of_its_last_report() -> None:
    def load(*positions: Position) -> ReceivedLoad:
        return ReceivedLoad(NodeLoad("n", 1, None, (), positions), 1)

    records = [load(Position(0, 1)), ReceivedLoad(None, 1), load(Position(0, 4), Position(1, 9), Position(7, 1))]
    assert mutations_behind(records, {0: 10, 1: 5, 2: 3}) == {"n": 6}
    assert mutations_behind([load()], {0: 10}) == {}


def test_machines_of_nodes_show_what_breaks_this_week() -> None:
    """A certificate that ends and a full disk have a level on the page of nodes, a reason on the page of health."""
    state = replace(large_state(5), epoch=9)
    ids, day, many = [state.node_names[f"n{number}"] for number in range(1, 6)], 86_400 * SECOND_US, 1 << 40
    machines = {
        ids[0]: Machine(many, NOW + 3 * day),
        ids[1]: Machine(many, NOW - 1),
        ids[2]: Machine(3 << 29, None),
        ids[3]: Machine(many, NOW + 30 * day),
        "unknown": Machine(0, 0),
    }
    at = view_input(state, replace(reports(state), machines=machines))
    rows = {row["name"]: row for row in VIEWS["nodes"].read(at)["nodes"]["rows"]}
    assert [rows[f"n{number}"]["level"] for number in range(1, 6)] == ["warn", "bad", "warn", "ok", "ok"]
    assert rows["n1"]["certificate_left_us"] == 3 * day
    assert [rows[name]["disk_free"] for name in ("n3", "n5")] == [3 << 29, None]
    health = VIEWS["health"].read(at)
    found = [(row["text"], row["level"], row["query"]) for row in health["reasons"] if "of node" in row["text"]]
    assert found == [
        ("the certificate of node n2 has expired", "bad", {"node": "n2"}),
        ("the certificate of node n1 ends in 3 days", "warn", {"node": "n1"}),
        ("the disk of node n3 has 1.5 GiB left", "warn", {"node": "n3"}),
    ]
    assert health["level"] == "bad"
    ends = VIEWS["clocks"].read(at)["node_certificates"]
    assert [row["node"] for row in ends["ending"]] == ["n2", "n1"]
    assert (ends["nodes"], ends["level"]) == (3, "bad")
    page = page_of(VIEWS["clocks"], at)
    assert ("3 nodes report one" in page, "expired" in page) == (True, True)
    for node, texts in {"n1": ("ends in 3 days",), "n3": ("1.5 GiB", "none reported"), "n5": ("not reported",)}.items():
        chosen = page_of(VIEWS["nodes"], replace(at, query={"node": node}))
        assert [text for text in texts if text not in chosen] == []


def test_releases_of_agents_count_beside_those_of_nodes() -> None:
    state, release = large_state(3), "8.0"
    state = replace(state, nodes=Map({name: replace(one, release=release) for name, one in state.nodes.items()}))
    found = reports(state)
    for of_agents, level in ((release, "ok"), ("9.0", "warn"), ("", "ok")):
        agents = {role: replace(one, release=of_agents) for role, one in found.agents.items()}
        at = view_input(state, replace(found, agents=agents))
        seen = VIEWS["clocks"].read(at)
        assert seen["releases_level"] == level
        count = {row["release"]: (row["nodes"], row["agents"]) for row in seen["releases"]}
        expected = {release: (3, 0)} | ({} if not of_agents else {of_agents: (3 * (of_agents == release), len(agents))})
        assert count == expected
        assert ("9.0" in page_of(VIEWS["clocks"], at)) == (of_agents == "9.0")


def test_findings_of_the_doctor_have_a_page_and_reasons() -> None:
    state = STATES[3]
    findings = (
        Finding("broker", "ok", "1 broker"),
        Finding("topics", "fail", "topic_misconfigured: <b>", ("ringlog cluster repair-topics",)),
        Finding("cache", "warn", "Redis has epoch 1, 9 behind", ("start Redis",)),
        Finding("agents", "fail", "validator: stopped"),
        Finding("nodes", "skipped", "not examined"),
    )
    at = view_input(state, replace(reports(state), findings=findings, examined_at=NOW))
    found = VIEWS["checks"].read(at)
    assert [row["level"] for row in found["findings"]] == ["ok", "bad", "warn", "bad", "idle"]
    assert found["level"] == "bad"
    page = page_of(VIEWS["checks"], at)
    assert "topic_misconfigured: &lt;b&gt;" in page
    assert "ringlog cluster repair-topics" in page
    health = VIEWS["health"].read(at)
    shown = [(row["text"].partition(":")[0], row["level"], row["next"]) for row in health["reasons"]]
    assert ("topics", "bad", "ringlog cluster repair-topics") in shown
    assert ("cache", "warn", "start Redis") in shown
    assert "agents" not in {name for name, _, _ in shown}, "agents have a reason of their own"
    past = VIEWS["health"].read(replace(at, is_past=True))
    assert "topics" not in {row["text"].partition(":")[0] for row in past["reasons"]}
    assert "No check has ended yet" in page_of(VIEWS["checks"], view_input(state))


def test_impossible_values_of_a_machine_count_as_not_measured() -> None:
    def load(node: str, disk: int | None, end: int | None) -> ReceivedLoad:
        return ReceivedLoad(NodeLoad(node, 1, None, (), (), disk, end), 1)

    records = [
        load("a", 5, 6),
        ReceivedLoad(None, 1),
        load("a", 7, None),
        load("b", -1, -1),
        load("c", 1 << 62, 1 << 63),
    ]
    records.append(load("a stranger", 1, 1))
    assert machines_of(records, {"a", "b", "c"}) == {"a": Machine(7, None), "b": Machine(), "c": Machine()}


def test_dead_letters_are_counted_by_reason_with_the_newest_of_each() -> None:
    def letter(offset: int, reason: str, *, is_resent: bool = False) -> LetterSummary:
        return LetterSummary(offset, NOW, reason, f"detail {offset}", "app.t", f"m/0/{offset}", NOW, "w", is_resent)

    newest = letter(9, "b"), letter(8, "a", is_resent=True), letter(7, "b", is_resent=True), letter(6, "b")
    view, state = VIEWS["cdc"], STATES[3]
    at = view_input(state, replace(reports(state), letters=newest, letters_end=10))
    rows = view.read(at)["dead_letters"]
    assert [(row["reason"], row["letters"], row["resent"], row["level"], row["newest"]["id"]) for row in rows] == [
        ("b", 3, 1, "warn", 9),
        ("a", 1, 1, "ok", 8),
    ]
    page = page_of(view, at)
    assert ("ringlog cdc dead-letters show 9" in page, "detail 7" in page) == (True, False)
    assert view.read(view_input(state))["dead_letters"] is None
    (card,) = (card for card in VIEWS["health"].read(at)["cards"] if card["title"] == "CDC")
    assert "2 recent dead letters" in card["note"]


def test_the_lease_of_a_stopped_writer_has_ended() -> None:
    state = hostile("w")
    for horizon, is_shown in ((NOW + SECOND_US, False), (NOW - 42 * SECOND_US, True)):
        writer = replace(state.writers["w"], horizon=horizon, low_watermark=0)
        page = page_of(VIEWS["cdc"], view_input(replace(state, writers=Map({"w": writer}))))
        assert ("ended 42 s ago" in page, "1970-01-01" in page) == (is_shown, False)


@pytest.mark.parametrize(("nodes", "shards"), [(0, 0), (1, 1), (25, 4), (26, 4), (200, 4), (200, 64), (200, 300)])
def test_the_cells_of_a_heat_map_do_not_overlap(nodes: int, shards: int) -> None:
    drawn = drawing.heat([{"node": f"n{number}", "shards": [1] * shards} for number in range(nodes)])
    width, height = map(float, re.findall(r'viewBox="0 0 (\S+) (\S+)"', drawn)[0])
    cells = re.findall(r'<rect x="(\d+)" y="(\d+)" width="(\d+)"', drawn)
    assert (len(cells), len({(x, y) for x, y, _ in cells})) == (nodes * shards, nodes * shards)
    assert all(int(x) + int(side) <= width and int(y) + int(side) <= height for x, y, side in cells)
    assert nodes < 200 or shards > 4 or height < 1_200, "columns beside each other"


def test_one_degraded_range_of_ten_thousand_is_visible() -> None:
    bar = drawing.share_bar({"ok": 9_999, "warn": 1, "bad": 0})
    found = re.findall(r'width="([\d.]+)" height="10" class="part (\w+)"', bar)
    widths = {level: float(width) for width, level in found}
    assert widths["warn"] > 2
    assert widths.keys() == {"ok", "warn"}
    assert sum(widths.values()) == pytest.approx(200, abs=0.1)


def test_the_heat_map_and_the_plan_count_every_tablet() -> None:
    state, counts = large_state(40, 40, 10), Counter[tuple[str, int]]()
    for tablet in chain.from_iterable(state.tablets.values()):
        counts.update((state.nodes[one.node].name, one.shard) for one in tablet.replicas)
    value = VIEWS["tablets"].read(view_input(state))
    shown = {(row["node"], shard): n for row in value["heat"] for shard, n in enumerate(row["shards"])}
    assert len(shown) == 160
    assert {place: n for place, n in shown.items() if n} == counts
    moves = advise(state, {}).moves
    assert value["plan_total"] == len(moves) > len(value["plan"]) == ADVISED_MAX
    assert [(row["table"], row["tablet"]) for row in value["plan"]] == [
        (one.table, one.tablet) for one in moves[:ADVISED_MAX]
    ]


def test_a_plan_is_computed_once_for_all_states_with_its_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    state, live = large_state(7, 5, 3), reports(STATES[3])
    computed: list[int] = []
    real = placement.advise
    monkeypatch.setattr(placement, "advise", lambda state, *rest: (computed.append(state.epoch), real(state, *rest))[1])
    for command in (commands.Noop(), commands.Noop(), commands.ChangeSettings((("tablet_streams_max", 7),))):
        state = entries.applied(state, command)
        VIEWS["tablets"].read(view_input(state, live))
    VIEWS["tablets"].read(view_input(state, replace(live, loads=Reports())))
    assert computed == [state.epoch - 2, state.epoch, state.epoch]


def test_rows_are_split_into_pages_with_the_worst_first() -> None:
    state = STATES[100]
    view = VIEWS["nodes"]
    first = view.read(view_input(state, reports(state, silent="n77"), limit=30))
    assert (first["nodes"]["rows"][0]["name"], first["nodes"]["pages"]) == ("n77", 4)
    names = {
        row["name"]
        for page in range(1, 5)
        for row in view.read(view_input(state, limit=30, page=page))["nodes"]["rows"]
    }
    assert len(names) == 100
    assert len(view.read(view_input(state, filter="dc1"))["nodes"]["rows"]) == 50


def test_the_log_shows_authors_refusals_and_differences() -> None:
    async def ask() -> None:
        cluster = three_nodes()
        with cluster.client("deploy", on_behalf="ann") as client:
            client.submit(commands.create_keyspace("late", 3))
        with console_of(cluster) as world:
            newest = world.hub.state.epoch
            (line,) = (await world.http.get("/v1/log?by=ann")).json()["lines"]
            assert (line["epoch"], line["on_behalf"], line["entry"]["name"]) == (newest, "ann", "late")
            found = (await world.http.get(f"/v1/log?from={newest - 1}&to={newest}&diff=1")).json()["difference"]
            first = found["items"][0]
            assert (first["section"], first["change"], first["key"]) == ("keyspaces", "added", "late")
            kinds = {row["entry"]["command"] for row in (await world.http.get("/v1/log?kind=Join")).json()["lines"]}
            assert kinds == {"Join"}
            assert (await world.http.get("/v1/log?refused=1")).json()["lines"] == []

    asyncio.run(ask())


def test_an_operation_shows_its_barrier_and_an_estimate_from_earlier_ones() -> None:
    cluster = three_nodes()
    cluster.add_nodes(1, datacenter="dc1", rack="r1")
    cluster.add_nodes(1, tokens=0, datacenter="dc1", rack="r1")
    with cluster.client("deploy") as client:
        client.submit(commands.join("n5", 4))
    view = VIEWS["operations"]
    cluster.hold("node-n1")
    state = cluster.settle(lambda state: next(one for one in in_flight(state)).stage == "prepared")
    live = replace(reports(state), acks={})
    row = view.read(view_input(state, live))["operations"]["rows"][0]
    assert (row["stage"], row["done"], row["stages_total"], row["cancellable"]) == ("prepared", 1, 6, True)
    assert row["barrier"]["missing"] == sorted(row["waits_for_nodes"])
    assert "n1" in row["barrier"]["missing"]
    assert row["ways_out"]
    assert [one["ended"] for one in view.read(view_input(state, live))["operations"]["rows"][1:]] == [True] * 4
    took = {one.kind: one for one in state.operations.values() if one.stage == "finished"}["join"]
    longer = replace(took, marks=tuple(replace(mark, at=mark.at + 1_000_000 * n) for n, mark in enumerate(took.marks)))
    with_past = replace(state, operations=Map({longer.id: longer, row["id"]: state.operations[row["id"]]}))
    here = state.operations[row["id"]]
    assert remaining(with_past, here, here.marks[-1].at) == 5_000_000
    assert remaining(with_past, here, here.marks[-1].at + 5_000_000) is None
    assert remaining(replace(state, operations=Map({here.id: here})), here, here.marks[-1].at) is None
