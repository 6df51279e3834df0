"""Balance over time: the history matches a plain count, and its chart matches the history."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from xml.etree import ElementTree

import pytest
from immutables import Map

from ringlog.kernel.commands.placement.resizes import DecideResize
from ringlog.kernel.commands.placement.tablets import MigrateTablets
from ringlog.kernel.commands.schema.tables import DropTable
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.tablets.resize import MERGE, SPLIT
from ringlog.kernel.values import TabletOptions, replace
from ringlog.operator.rehearsal import balance_chart as balance_picture
from ringlog.operator.rehearsal import balance_history as balance_film
from ringlog.operator.rehearsal.balance_chart import EPOCHS, HIGH, LEFT, SECONDS, WIDE, draw_chart
from ringlog.operator.rehearsal.balance_history import BalanceHistory, HistoryNode, history_of
from ringlog.protocol.balancer.load_book import ReceivedLoad
from ringlog.wire.records import NodeLoad, TableLoad
from tests.kernel.entries import applied
from tests.kernel.tablets import clusters
from tests.kernel.tablets.clusters import TABLE, factor, migration, step, tablet
from tests.kernel.tablets.test_refusals import finish

SVG = "{http://www.w3.org/2000/svg}"
SIZE = 1 << 20
START = clusters.with_table(clusters.three_racks(), factor(2), 4)


def moves(state: ClusterState, index: int = 0) -> Iterator[ClusterState]:
    """Yield every state of a migration."""
    state = applied(state, MigrateTablets((migration(state, index),)))
    yield state
    while tablet(state, index).transition is not None:
        yield (state := applied(state, step(state, index)))


def table_load(state: ClusterState, table: str, own: tuple[int, ...], sizes: tuple[int, ...]) -> TableLoad:
    return TableLoad(table, own, sizes, id=state.tables[table].id, count=state.tablets[TABLE].count)


def loads_of(state: ClusterState, appended: int) -> list[ReceivedLoad]:
    """Return a report of every node: tablet i has i + 1 MiB."""
    found = []
    for node in sorted(state.nodes):
        own = [one.index for one in state.tablets[TABLE] if node in dict(clusters.places(one))]
        sizes = tuple([(index + 1) * SIZE for index in own])
        found.append(ReceivedLoad(NodeLoad(node, 0, 1 << 40, (table_load(state, TABLE, tuple(own), sizes),)), appended))
    return found


def counted(
    state: ClusterState, balance_history: BalanceHistory
) -> tuple[Counter[tuple[str, int]], Counter[tuple[str, int]]]:
    """Return replicas and bytes by name and shard."""
    tablets, sizes = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    for one in state.tablets[TABLE]:
        for node, shard in clusters.places(one):
            tablets[state.nodes[node].name, shard] += 1
            sizes[state.nodes[node].name, shard] += (one.index + 1) * SIZE
    return tablets, sizes


def charted(balance_history: BalanceHistory, what: str) -> Counter[tuple[str, int]]:
    moment = balance_history.moments[-1]
    column = moment.sizes if what == "bytes" else moment.tablets
    rows = {
        (node.name, shard): int(column[number, shard])
        for number, node in enumerate(balance_history.nodes)
        for shard in range(node.shards)
    }
    return +Counter(rows)


def test_each_moment_matches_a_plain_count() -> None:
    heard = loads_of(START, START.time)
    balance_history = history_of([START], heard)
    shown = 0
    for state in moves(START):
        balance_history.add_state(state.time, state)
        assert (charted(balance_history, "tablets"), charted(balance_history, "bytes")) == counted(
            state, balance_history
        )
        assert balance_history.moments[-1].moving == len(state.tablets[TABLE].transitions)
        shown += balance_history.moments[-1].moving
    assert shown
    assert not balance_history.moments[-1].moving
    assert [node.name for node in balance_history.nodes] == [f"n{number}" for number in range(1, 7)]


def test_entries_without_a_change_add_no_moment() -> None:
    balance_history = history_of([START, START], ())
    assert len(balance_history.moments) == 1
    balance_history.add_state(START.time + 5, applied(START, DropTable("ks", "t")))
    assert not balance_history.moments[-1].tablets.any()
    assert balance_history.end == START.time + 5
    assert not history_of([clusters.three_racks()], ()).moments, "a history starts with the first table in tablets"


def test_a_report_counts_from_its_append_time_if_accepted() -> None:
    later = START.time + 1_000
    wrong = ReceivedLoad(NodeLoad(min(START.nodes), 0, 1, (table_load(START, TABLE, (0,), (-1,)),)), later)
    balance_history = history_of([START], [*loads_of(START, later), wrong, ReceivedLoad(None, later)])
    assert not balance_history.moments[0].sizes.any()
    assert charted(balance_history, "bytes") == counted(START, balance_history)[1]
    assert balance_history.moments[-1].at == later


def test_a_split_divides_bytes_evenly_until_the_next_report() -> None:
    balance_history = history_of([START], loads_of(START, START.time))
    whole = int(balance_history.moments[-1].sizes.sum())
    assert whole == 2 * SIZE * (1 + 2 + 3 + 4)
    state = START
    for number, (decision, count) in enumerate(((SPLIT, 8), (MERGE, 4)), start=1):
        state = applied(state, DecideResize(TABLE, decision, number))
        state = applied(state, finish(state, number))
        assert state.tablets[TABLE].count == count
        balance_history.add_state(state.time, state)
        assert int(balance_history.moments[-1].sizes.sum()) == whole
    assert charted(balance_history, "bytes") != counted(state, balance_history)[1]


def test_colocated_tables_count_once_with_all_bytes() -> None:
    state = applied(START, clusters.create_table("u", TabletOptions(base="t"), 2))
    more = table_load(state, "ks.u", (0, 1), (7, 7))
    beside = [
        ReceivedLoad(NodeLoad(one.load.node, 0, 1, (*one.load.tables, more)), one.appended)
        for one in loads_of(state, state.time)
        if one.load is not None
    ]
    balance_history = history_of([state], beside)
    assert charted(balance_history, "tablets") == counted(state, balance_history)[0]
    assert int(balance_history.moments[-1].sizes.sum()) == 2 * SIZE * 10 + 2 * 2 * 7


def test_a_long_history_keeps_its_end_and_its_most_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balance_film, "MOMENTS_MAX", 4)
    state, balance_history = START, BalanceHistory()
    for turn in range(6):
        for after in moves(state, turn % 4):
            state = after
            balance_history.add_state(state.epoch, state)
            assert len(balance_history.moments) < 4
    assert charted(balance_history, "tablets") == counted(state, balance_history)[0]
    assert any(moment.moving for moment in balance_history.moments)


# ------------------------------------------------------------------------------------------------------- picture


def drawn(balance_history: BalanceHistory, unit: str = SECONDS) -> ElementTree.Element:
    found = draw_chart(balance_history, unit)
    assert found == draw_chart(balance_history, unit)
    return ElementTree.fromstring(found)


def panel(svg: ElementTree.Element, title: str) -> ElementTree.Element:
    for group in svg.iter(f"{SVG}g"):
        if any((text.text or "").startswith(title) for text in group.iter(f"{SVG}text")):
            return group
    raise AssertionError(title)


def heights(group: ElementTree.Element, name: str) -> list[float]:
    """Return the heights of a node's line, from left to right."""
    (line,) = [one for one in group.iter(f"{SVG}path") if (one.findtext(f"{SVG}title") or "") == name]
    return [float(y) for y in re.findall(r"(?:M[\d.]+ |V)([\d.]+)", line.attrib["d"])]


@pytest.fixture(scope="module")
def story() -> BalanceHistory:
    return history_of([START, *moves(START)], loads_of(START, START.time))


def test_lines_follow_the_loads(story: BalanceHistory) -> None:
    svg = drawn(story)
    for what in ("tablets", "bytes"):
        lines = panel(svg, f"{what} of each node")
        columns = [one.sizes if what == "bytes" else one.tablets for one in story.moments]
        most = max(int(column.sum(axis=1).max()) for column in columns)
        for number, node in enumerate(story.nodes):
            values = [int(column[number].sum()) for column in columns]
            wanted = [value for place, value in enumerate(values) if not place or value != values[place - 1]]
            found = heights(lines, node.name)
            shown = [round(most * (1 - height / HIGH)) for height in found]
            close = most // HIGH + 1 if what == "bytes" else 0
            assert all(abs(a - b) <= close for a, b in zip(shown[: len(wanted)], wanted, strict=True)), node


def test_strips_and_moves_fill_the_time(story: BalanceHistory) -> None:
    svg = drawn(story, EPOCHS)
    strips = Counter[str]()
    for rect in panel(svg, "tablets of each shard").iter(f"{SVG}rect"):
        strips[rect.findtext(f"{SVG}title") or ""] += round(float(rect.attrib["width"]) * 10)
    assert set(strips) == {f"n{node}/{shard}" for node in range(1, 7) for shard in range(2)}
    assert all(abs(wide - 10 * WIDE) <= len(story.moments) for wide in strips.values())
    bars = [float(one.attrib["x"]) for one in panel(svg, "migrating tablets").iter(f"{SVG}rect")]
    assert bars
    assert all(LEFT <= x <= LEFT + WIDE for x in bars)
    assert f"epoch {story.end}" in [text.text for text in svg.iter(f"{SVG}text")]


def test_without_sizes_the_panel_of_bytes_is_missing() -> None:
    assert "bytes" not in draw_chart(history_of([START], ()))


def test_names_are_text_and_many_shards_share_a_strip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balance_picture, "STRIPS_MAX", 11)
    monkeypatch.setattr(balance_picture, "NAMED_MAX", 2)
    balance_history = history_of([START], ())
    balance_history.nodes[0] = HistoryNode('<n1 & "others">', 2)
    svg = drawn(balance_history)
    assert len(heights(panel(svg, "tablets of each node"), '<n1 & "others">')) == 2
    titles = [one.text for one in panel(svg, "tablets of the fullest shard").iter(f"{SVG}title")]
    assert sorted(map(str, titles)) == ['<n1 & "others">', "n2", "n3", "n4", "n5", "n6"]
    assert "and 4 more" in [text.text for text in svg.iter(f"{SVG}text")]


def test_a_line_ends_when_its_node_leaves() -> None:
    balance_history = history_of([START], ())
    gone = replace(START.nodes[clusters.node_id(1)], state="left")
    balance_history.add_state(START.time + 10, applied(START, DropTable("ks", "t")))
    balance_history.add_state(START.time + 20, replace(START, tablets=Map(), nodes=START.nodes.set(gone.id, gone)))
    assert balance_history.moments[-1].there == frozenset(range(1, 6))
    lines = panel(drawn(balance_history), "tablets of each node")
    assert len(heights(lines, "n1")) < len(heights(lines, "n2"))
