"""What reports mean for plans: weights and bytes, reports from before a merge, reports that are missing."""

from __future__ import annotations

from ringlog.kernel.balance.advice import advise, input_of, sized
from ringlog.kernel.balance.ledger import Ledger
from ringlog.kernel.balance.model import GIB, BalanceInput, MeasuredLoads
from ringlog.kernel.balance.reports import Reports
from ringlog.kernel.commands.placement.resizes import DecideResize
from ringlog.kernel.commands.placement.tablets import MigrateTablets
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.topology.movements import Leave
from ringlog.kernel.commands.topology.nodes import UpdateNode
from ringlog.kernel.values import TabletOptions
from ringlog.protocol.balancer.load_book import Heard, measured, take
from ringlog.protocol.balancer.load_reports import load_of, own_tablets
from tests.kernel.balance.test_at_rest import arrived, finished, loads
from tests.kernel.balance.world import host
from tests.kernel.entries import applied
from tests.kernel.tablets import lives


def test_a_node_of_weight_two_holds_twice_as_many_tablets() -> None:
    """Reports of the reference node, which measure no capacity, change nothing about it."""
    state = lives.cluster(*[lives.register(number, shards=2) for number in range(1, 5)])
    state = applied(state, CreateKeyspace("ks", lives.factor(1)), lives.create_table(tablets=TabletOptions(count=100)))
    heavy = min(state.nodes)
    state = applied(state, UpdateNode(heavy, capacity=2))
    for measures in (False, True):
        for _ in range(50):
            moves = advise(state, loads(state, {"ks.t": 500 * GIB}) if measures else {}).moves
            state = arrived(applied(state, MigrateTablets(moves))) if moves else state
        held = {node: sum(map(len, own_tablets(state, node).values())) for node in state.nodes}
        assert 38 <= held[heavy] <= 41, held
        assert max(count for node, count in held.items() if node != heavy) <= 21


def test_a_capacity_in_bytes_is_multiplied_by_the_weight_and_guessed_for_the_others() -> None:
    hosts = [host("n1", 2), host("n2", 2, weight=3), host("n3", 4)]
    reports = {"n1": 100, "n2": 100, "n3": None}
    measured = {name: MeasuredLoads(capacity, {}) for name, capacity in reports.items()}
    ledger = Ledger(BalanceInput(hosts, [], measured))
    assert {name: node.capacity for name, node in ledger.nodes.items()} == {"n1": 100, "n2": 300, "n3": 200}


def test_reports_from_before_a_merge_count_for_no_other_table() -> None:
    state = lives.cluster(*[lives.register(number, shards=1) for number in (1, 2, 3)])
    tables = [lives.create_table(name, TabletOptions(count=8), number) for number, name in enumerate("ab", start=1)]
    state = applied(state, CreateKeyspace("ks", lives.factor(3)), *tables)
    bytes_of = {"ks.a": 800 * GIB, "ks.b": 8 * GIB}
    heard = []
    for node in sorted(state.nodes):
        own = own_tablets(state, node)
        sizes = {table: dict.fromkeys(numbers, bytes_of[table] // 8) for table, numbers in own.items()}
        heard.append(Heard(load_of(state, node, own, sizes, 0), 1))
    reports = take(Reports(), heard, state)
    state = finished(decided := applied(state, DecideResize("ks.a", "merge", 1)), decided.tablets["ks.a"])
    inputs = input_of(state, measured(reports, state))
    sizes_of = {found.table: found.bytes for found in (sized(state, inputs, each) for each in state.tablets.values())}
    assert sizes_of == bytes_of
    for node in Ledger(inputs).nodes.values():
        assert "of ks.a is missing" in node.incomplete
    assert {amount for one in inputs.measured.values() for amount in one.loads["bytes"]["ks.b"].values()} == {GIB}
    assert all("ks.a" not in one.loads["bytes"] for one in inputs.measured.values())


def test_a_node_whose_reports_do_not_count_can_leave() -> None:
    state = lives.cluster(*[lives.register(number) for number in (1, 2, 3)])
    state = applied(state, CreateKeyspace("ks", lives.factor(1)), lives.create_table(tablets=TabletOptions(count=16)))
    goes = min(state.nodes)
    state = applied(state, Leave(goes))
    for silent in ({goes}, set(state.nodes) - {goes}):
        left = state
        for _ in range(20):
            told = {node: found for node, found in loads(left, {"ks.t": 16 * GIB}).items() if node not in silent}
            moves = advise(left, told).moves
            left = arrived(applied(left, MigrateTablets(moves))) if moves else left
        assert not own_tablets(left, goes), silent
