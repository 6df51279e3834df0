"""JSON of operators: it covers every command, errors name mistakes, and token choices are balanced and repeatable."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from immutables import Map

from ringlog.client.tokens import RING, choose_tokens
from ringlog.kernel.commands.cluster.cluster import InitializeCluster, Noop, TakeOver
from ringlog.kernel.commands.schema.functions import CreateAggregate, CreateFunction, DropFunction
from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace, CreateKeyspace
from ringlog.kernel.commands.schema.tables import AlterTable, CreateTable
from ringlog.kernel.commands.schema.views import CreateIndex, CreateView
from ringlog.kernel.commands.topology.movements import Join, Remove, Replace
from ringlog.kernel.commands.topology.nodes import RegisterNode
from ringlog.kernel.generations.describe import ranges_digest
from ringlog.kernel.model.modes import Term
from ringlog.kernel.model.state import EMPTY_STATE, CdcWriter, Node, PreparedGeneration
from ringlog.kernel.plans import planned
from ringlog.kernel.registry import COMMANDS
from ringlog.kernel.values import (
    TOKEN_MAX,
    TOKEN_MIN,
    CdcOptions,
    Column,
    ColumnRename,
    DatacenterReplication,
    Position,
    Replication,
    Witness,
    is_token,
    is_uuid,
    replace,
)
from ringlog.operator.intents.intents import NUM_TOKENS, InvalidCommand
from ringlog.operator.intents.json_commands import from_json, to_json
from ringlog.runtime.draw import SeededDraw
from ringlog.wire.commands import encode_command, mapper
from ringlog_schemas import catalog
from tests.wire.strategies import records

A_ID = "0190a5dc-ac96-774b-bcce-b302099a8057"
A = Node(A_ID, "A", "A:7000", "dc1", "r1", 1, 12, "0.1.0", (), 1, "none", (), 2)
STATE = replace(EMPTY_STATE, nodes=Map({A_ID: A}), node_names=Map({"A": A_ID}))
STREAM = bytes(range(16))
NETWORK = Replication("network", 5, (DatacenterReplication("dc1", 3), DatacenterReplication("east", 2, ("r1", "r2"))))


def read(value, state=STATE, seed=b"seed"):
    return from_json(state, value, SeededDraw(seed))


def refused(value, state=STATE):
    found = read(value, state)
    assert isinstance(found, InvalidCommand), found
    return found.code, found.detail


# ---------------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize(
    ("value", "command"),
    [
        ({"command": "Noop"}, Noop()),
        (
            {"command": "InitializeCluster", "name": "c", "settings": {"b": 2, "a": 1}},
            InitializeCluster("c", (("a", 1), ("b", 2))),
        ),
        ({"command": "Join", "node": "A", "tokens": [3, -3], "seed": "00ff"}, Join(A_ID, (3, -3), b"\x00\xff")),
        ({"command": "Join", "node": A_ID, "tokens": [], "seed": ""}, Join(A_ID, (), b"")),
        ({"command": "Join", "node": "stranger", "tokens": [1], "seed": ""}, Join("stranger", (1,), b"")),
        (
            {"command": "CreateKeyspace", "name": "k", "replication": {"strategy": "simple", "factor": 2}},
            CreateKeyspace("k", Replication("simple", 2)),
        ),
        (
            {
                "command": "AlterKeyspace",
                "name": "k",
                "replication": {"strategy": "network", "datacenters": {"east": ["r2", "r1"], "dc1": 3}},
            },
            AlterKeyspace("k", NETWORK),
        ),
        (
            {"command": "CreateKeyspace", "name": "k", "replication": {"strategy": "entire"}},
            CreateKeyspace("k", Replication("entire", 0)),
        ),
        (
            {"command": "Replace", "node": "A", "replaced": A_ID, "ignore_nodes": ["A", "stranger"]},
            Replace(A_ID, A_ID, (A_ID, "stranger")),
        ),
        ({"command": "Remove", "node": "A"}, Remove(A_ID, ())),
        (
            {
                "command": "AlterTable",
                "keyspace": "k",
                "name": "t",
                "add_columns": [{"name": "v", "type": "int"}],
                "cdc": {"preimage": "full"},
            },
            AlterTable("k", "t", (Column("v", "int"),), CdcOptions(preimage="full")),
        ),
        (
            {"command": "AlterTable", "keyspace": "k", "name": "t", "cdc": True},
            AlterTable("k", "t", (), CdcOptions(True)),
        ),
    ],
)
def test_json_equals_the_command(value, command):
    assert read(value) == command


def test_nodes_in_acks_and_reports_may_be_named():
    witness = {"node": "A", "applied": 5, "drained": 4}
    report = {"node": "A", "operation": "join-3", "rows": 9, "checksum": "ab"}
    found = read(
        {"command": "AdvanceOperation", "operation": "o", "to": "s", "witnesses": [witness], "reports": [report]}
    )
    assert found.witnesses == (Witness(A_ID, 5, 4),)
    assert found.reports[0].node == A_ID


def test_a_table_has_three_equal_notations():
    base = {"command": "CreateTable", "keyspace": "k", "name": "t", "id": A_ID}
    expected = CreateTable("k", "t", A_ID, (Column("p", "text"),), ("p",), (), CdcOptions(True, "true"))
    cdc = {"enabled": True, "preimage": True}
    assert read({**base, "columns": {"p": "text"}, "partition_key": "p", "cdc": cdc}) == expected
    columns = [{"name": "p", "type": "text"}]
    assert read({**base, "columns": columns, "partition_key": ["p"], "options": {"cdc": cdc}}) == expected
    assert refused({**base, "columns": columns, "partition_key": "p", "cdc": cdc, "options": {"cdc": cdc}}) == (
        "bad_field",
        "options.cdc: cannot be combined with cdc",
    )


def test_an_unknown_strategy_is_left_to_the_rule():
    value = {"command": "CreateKeyspace", "name": "k", "replication": {"strategy": "orbital", "stations": {}}}
    assert read(value) == CreateKeyspace("k", Replication("orbital", 1))


def test_defaults_of_a_node():
    found = read({"command": "RegisterNode", "name": "n1"})
    assert is_uuid(found.id)
    assert found == RegisterNode("n1", found.id, "n1:7000", "dc1", "r1", 1, 12, found.release, (), 1)
    assert read({"command": "RegisterNode", "name": "n1"}) == found
    assert read({"command": "RegisterNode", "name": "n1"}, seed=b"other").id != found.id


def test_defaults_come_from_the_state():
    state = replace(
        STATE,
        terms=Map({"validator": Term("validator", "v", 4, 3)}),
        writers=Map({"w": CdcWriter("w", "i", 2, 30, 10, 20, (), ())}),
        prepared=PreparedGeneration("g", None, b"", 1, ((0, ()),)),
    )
    assert read({"command": "TakeOver", "role": "validator", "instance": "x"}, state) == TakeOver("validator", "x", 5)
    assert read({"command": "TakeOver", "role": "publisher"}, state).term == 1
    found = read({"command": "AdvanceCdcWriter", "writer": "w", "positions": {"3": 14}}, state)
    assert (found.incarnation, found.horizon, found.low_watermark) == ("i", 30, 20)
    assert found.positions == (Position(3, 14),)
    assert read({"command": "CommitCdcGeneration", "generation": "g", "timestamp": 1}, state).digest == ranges_digest(
        ()
    )


def test_defaults_of_views_indexes_functions_and_aggregates() -> None:
    view = {"command": "CreateView", "keyspace": "k", "name": "v", "table": "t", "partition_key": "a"}
    assert read(view) == CreateView("k", "v", "t", (), ("a",), ())
    index = {"command": "CreateIndex", "keyspace": "k", "table": "t", "column": "x" * 48}
    assert read(index) == CreateIndex("k", "t_" + "x" * 42 + "_idx", "t", "x" * 48)
    function = {"command": "CreateFunction", "keyspace": "k", "name": "f", "returns": "int", "language": "lua"}
    function |= {"body": "return 1"}
    assert read(function) == CreateFunction("k", "f", (), (), "int", "lua", "return 1")
    both = ("int", "text")
    assert read(function | {"arguments": list(both)}) == CreateFunction(
        "k", "f", both, ("arg0", "arg1"), "int", "lua", "return 1"
    )
    aggregate = {"command": "CreateAggregate", "keyspace": "k", "name": "a", "state_function": "f", "state_type": "int"}
    for initial, literal in ((0, "0"), (True, "true"), ("(1, 2)", "(1, 2)"), (None, None)):
        found = read(aggregate | {"arguments": ["int"], "initial": initial})
        assert found == CreateAggregate("k", "a", ("int",), "f", "int", "", literal)
    renamed = {"command": "AlterTable", "keyspace": "k", "name": "t", "rename_columns": {"a": "b"}}
    assert read(renamed) == AlterTable("k", "t", rename_columns=(ColumnRename("a", "b"),))
    assert read(aggregate) == CreateAggregate("k", "a", (), "f", "int")
    assert read({"command": "DropFunction", "keyspace": "k", "name": "f"}) == DropFunction("k", "f")
    assert read({"command": "DropFunction", "keyspace": "k", "name": "f", "arguments": []}) == DropFunction(
        "k", "f", ()
    )


def test_an_explicit_null_equals_a_missing_value() -> None:
    given = {"command": "UpdateNode", "node": "A", "address": None, "features": None, "capacity": 3, "shards": None}
    assert read(given) == read({"command": "UpdateNode", "node": "A", "capacity": 3})
    altered = {"command": "AlterTable", "keyspace": "ks", "name": "t", "add_columns": {"c": "int"}}
    assert read(altered | {"cdc": None}) == read(altered)


# --------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("value", "code", "part"),
    [
        ([], "bad_json", "object"),
        ("Noop", "bad_json", "object"),
        ({1: 2}, "bad_json", "object"),
        ({}, "missing_field", "command is missing"),
        ({"command": 1}, "bad_field", "command: must be text"),
        ({"command": "Jion"}, "unknown_command", "did you mean Join?"),
        ({"command": "ForgetState"}, "unknown_command", "ForgetState is not a command"),
        ({"command": "Noop", "x": 1}, "unknown_field", "x is not a field; there are none"),
        ({"command": "Join", "nod": "A"}, "unknown_field", "nod is not a field; did you mean node?"),
        ({"command": "Join", "qqq": "A", "node": "A"}, "unknown_field", "known: node, seed, tokens"),
        ({"command": "Join"}, "missing_field", "node is missing"),
        ({"command": "Join", "node": 1}, "bad_field", "node: must be text"),
        ({"command": "Join", "node": "A", "tokens": 5}, "bad_field", "tokens: must be a list"),
        ({"command": "Join", "node": "A", "tokens": [1, True]}, "bad_field", "tokens[1]: must be an integer"),
        ({"command": "Join", "node": "A", "tokens": [2**63]}, "bad_field", "tokens[0]: must be an integer of 64"),
        ({"command": "Join", "node": "A", "tokens": [1.0]}, "bad_field", "tokens[0]"),
        ({"command": "Join", "node": "A", "tokens": [1], "num_tokens": 1}, "bad_field", "cannot be combined"),
        ({"command": "Join", "node": "A", "num_tokens": 0}, "bad_field", "num_tokens: must be between"),
        ({"command": "Join", "node": "A", "num_tokens": "4"}, "bad_field", "num_tokens: must be an integer"),
        ({"command": "Join", "node": "A", "seed": "xyz"}, "bad_field", "seed: must be bytes in hex"),
        ({"command": "RegisterNode", "name": "\ud800"}, "bad_field", "name: must be text without lone surrogates"),
        ({"command": "RegisterNode", "name": None}, "bad_field", "name: must be text"),
        ({"command": "ChangeSettings", "settings": [1]}, "bad_field", "settings: must be an object"),
        ({"command": "ChangeSettings", "settings": {"a": "1"}}, "bad_field", "settings.a: must be an integer"),
        (
            {"command": "CreateKeyspace", "name": "k", "replication": {"strategy": "simple", "factr": 1}},
            "unknown_field",
            "replication.factr is not a field; did you mean factor?",
        ),
        (
            {"command": "CreateKeyspace", "name": "k", "replication": {"strategy": "simple"}},
            "missing_field",
            "replication.factor is missing",
        ),
        (
            {"command": "AlterTable", "keyspace": "k", "name": "t", "cdc": {"enabled": 1}},
            "bad_field",
            "cdc.enabled: must be true or false",
        ),
        ({"command": "AdvanceCdcWriter", "writer": "w"}, "missing_field", "incarnation is missing"),
        ({"command": "AdvanceCdcWriter", "writer": {}}, "bad_field", "writer: must be text"),
        (
            {"command": "AdvanceCdcWriter", "writer": "w", "incarnation": "i", "horizon": 1, "low_watermark": 1}
            | {"positions": {"-1": 2}},
            "bad_field",
            "positions: must be an object of partition numbers",
        ),
        (
            {
                "command": "PutCdcGenerationData",
                "generation": "g",
                "ranges": [{"end": 1, "ignore_msb": 1, "streams": ["00"]}],
            },
            "bad_field",
            "ranges[0].streams[0]: must be 16 bytes in hex",
        ),
    ],
)
def test_a_mistake_is_named(value, code, part):
    found_code, detail = refused(value)
    assert found_code == code
    assert part in detail


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("kind", sorted(COMMANDS))
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_any_json_becomes_a_valid_command_or_an_error(kind, data):
    fields = [field["name"] for field in catalog()[f"ringlog.commands.{kind}"]["fields"]]
    names = st.sampled_from([*fields, "num_tokens", "options"])
    found = read({**data.draw(st.dictionaries(names, json_values, max_size=6)), "command": kind})
    if isinstance(found, InvalidCommand):
        assert found.code in {"unknown_field", "missing_field", "bad_field"}
        assert found.detail
    else:
        assert encode_command(found)[0] == kind


# ---------------------------------------------------------------------------------------------------- writing


@pytest.mark.parametrize("kind", sorted(COMMANDS))
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_commands_round_trip(kind, data):
    command = mapper(kind).from_record(data.draw(records(f"ringlog.commands.{kind}")))
    if kind in ("InitializeCluster", "ChangeSettings"):
        command = replace(command, settings=tuple(sorted(dict(command.settings).items())))
    if kind in ("CreateKeyspace", "AlterKeyspace"):
        command = replace(command, replication=Replication("simple", command.replication.factor))
    if kind == "StagePlan":
        command = replace(command, commands=tuple(planned(Noop()) for _ in command.commands))
    if kind == "SchemaBatch":
        plain = (replace(one, create_keyspace=None, alter_keyspace=None) for one in command.statements)
        command = replace(command, statements=tuple(plain))
    assert read(to_json(EMPTY_STATE, command), EMPTY_STATE) == command


@pytest.mark.parametrize("setting", [NETWORK, Replication("entire", 0), Replication("simple", 3)])
def test_a_replication_round_trips(setting):
    command = AlterKeyspace("k", setting)
    assert read(to_json(STATE, command)) == command


def test_a_moving_node_may_get_its_tokens_again():
    state = replace(STATE, token_owners=STATE.token_owners.set(5, A_ID))
    node = replace(state.nodes[A_ID], tokens=(5,), state="normal")
    found = read({"command": "Move", "node": "A", "num_tokens": 3}, replace(state, nodes=state.nodes.set(A_ID, node)))
    assert len(found.tokens) == len(set(found.tokens)) == 3
    assert len(found.seed) == 16


def test_nodes_are_written_by_name():
    replace_a = Replace(A_ID, A_ID, (A_ID, "x"))
    assert to_json(STATE, replace_a)["ignore_nodes"] == ["A", "x"]
    assert to_json(STATE, replace_a)["replaced"] == "A"
    assert to_json(STATE, Join(A_ID, (1,), b"\x01")) == {"command": "Join", "node": "A", "tokens": [1], "seed": "01"}
    assert to_json(EMPTY_STATE, Join(A_ID, (), b""))["node"] == A_ID


# ----------------------------------------------------------------------------------------------------- tokens


def ownership(owners):
    """Return the share of the ring per owner."""
    tokens = sorted(owners)
    sizes = [tokens[0] - tokens[-1] + RING, *(high - low for low, high in pairwise(tokens))]
    shares = dict.fromkeys(owners.values(), 0)
    for token, size in zip(tokens, sizes, strict=True):
        shares[owners[token]] += size
    return {owner: size / RING for owner, size in shares.items()}


@pytest.mark.parametrize("count", [1, 4, 16, 64])
def test_an_empty_ring_is_divided_evenly(count):
    tokens = choose_tokens({}, count, SeededDraw(b"x"))
    assert len(set(tokens)) == count
    gaps = {high - low for low, high in pairwise(tokens)}
    assert not gaps or max(gaps) - min(gaps) <= 1
    assert choose_tokens({}, count, SeededDraw(b"x")) == tokens != choose_tokens({}, count, SeededDraw(b"y"))


@pytest.mark.parametrize("count", [4, 8, 16])
def test_successive_joins_balance_ownership(count):
    owners = {}
    for number in range(10):
        tokens = choose_tokens(owners, count, SeededDraw(bytes([number])))
        assert len(tokens) == count
        assert not set(tokens) & set(owners)
        owners |= dict.fromkeys(tokens, f"n{number}")
        shares = ownership(owners).values()
        assert max(shares) < 1.3 * min(shares)


@given(
    st.dictionaries(st.integers(TOKEN_MIN, TOKEN_MAX), st.sampled_from("abc"), max_size=8),
    st.integers(1, 40),
    st.binary(max_size=4),
)
def test_chosen_tokens_are_free(owners, count, seed):
    tokens = choose_tokens(owners, count, SeededDraw(seed))
    assert len(set(tokens)) == len(tokens) == count
    assert list(tokens) == sorted(tokens)
    assert all(is_token(token) and token not in owners for token in tokens)


def test_the_order_of_the_map_does_not_matter():
    owners = {token: f"n{token % 3}" for token in range(-50, 50, 7)}
    turned = dict(reversed(owners.items()))
    assert choose_tokens(owners, 9, SeededDraw(b"x")) == choose_tokens(turned, 9, SeededDraw(b"x"))


def test_a_join_gets_the_requested_number_of_tokens():
    assert len(read({"command": "Join", "node": "A", "num_tokens": 5}).tokens) == 5
    assert len(read({"command": "Join", "node": "A"}).tokens) == NUM_TOKENS
    assert read({"command": "Join", "node": "A", "num_tokens": 5}) == read(
        {"command": "Join", "node": "A", "num_tokens": 5}
    )
