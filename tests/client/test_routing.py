"""KeyReplicas by key, for keyspaces on the token ring, in tablets and in zones."""

from __future__ import annotations

import uuid

import pytest

from ringlog import Access, Level, RequestImpossible, Router, commands, replicas
from ringlog.client.client import Client
from ringlog.client.routing import planned, token_of_key
from ringlog.kernel.cql.types import TypeMismatch
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.ring.murmur3 import compose, token_of
from tests.client.test_plans import ring
from tests.kernel.entries import applied
from tests.kernel.tablets import clusters as tablets
from tests.kernel.zones import zone_keyspaces as zones

ORDER = uuid.UUID("00000000-0000-4000-8000-0000000000aa")


def on_ring() -> ClusterState:
    columns = {"id": "uuid", "line": "int", "text": "text"}
    made = commands.create_table("shop", "lines", columns, partition_key=["id", "line"], id=str(ORDER))
    return applied(ring(4, factor=2), made)


def test_a_key_of_a_table_is_composed_by_its_columns() -> None:
    state = on_ring()
    expected = token_of(compose([ORDER.bytes, (7).to_bytes(4, "big")]))
    for first in (ORDER, str(ORDER)):
        assert token_of_key(state, "shop.lines", (first, 7)) == expected
    assert token_of_key(state, "shop", compose([ORDER.bytes, (7).to_bytes(4, "big")])) == expected


def test_replicas_on_the_ring_are_the_group_of_the_token() -> None:
    state = on_ring()
    for line in range(50):
        found = replicas(state, "shop.lines", (ORDER, line))
        owners = sorted(state.token_owners)
        first = next((token for token in owners if token >= found.token), owners[0])
        assert found.read[0].id == state.token_owners[first]
        assert found.read == found.write
        assert found.addresses == tuple(node.address for node in found.read)
        assert (len(found.read), found.epoch) == (2, state.epoch)


def test_replicas_in_tablets_and_zones_are_those_of_the_tablet() -> None:
    in_tablets = tablets.with_table(tablets.three_racks(), tablets.factor(3), 8)
    for state in (in_tablets, zones.with_data("ABC", replicas=2)):
        for number in range(40):
            found = replicas(state, "ks.t", [number])
            held = state.tablets["ks.t"]
            assert [one.id for one in found.read] == [one.node for one in held.replicas(held.index_of(found.token))]
            needs = planned(state, "ks.t", [number], Access.WRITE).needs
            assert [need.members for need in needs] == [tuple(one.id for one in found.write)]


def test_a_moving_tablet_has_more_writers_than_readers() -> None:
    state = tablets.with_table(tablets.three_racks(), tablets.factor(3), 1)
    moving = tablets.started(state, tablets.migration(state), "write_both_read_old")
    found = replicas(moving, "ks.t", [1])
    assert (len(found.read), len(found.write)) == (3, 4)
    assert len(planned(moving, "ks.t", [1], Access.WRITE, Level.QUORUM).needs) == 2, "a quorum of both groups"


@pytest.mark.parametrize(
    ("place", "key", "code"),
    [
        ("nowhere", b"k", "no_replicas"),
        ("shop.nothing", ["k"], "unknown_table"),
        ("shop.nothing", b"k", "unknown_table"),
        ("shop.lines", [ORDER], "bad_key"),
    ],
)
def test_a_key_without_replicas_says_why(place: str, key: bytes | list[object], code: str) -> None:
    with pytest.raises(RequestImpossible) as error:
        replicas(on_ring(), place, key)
    assert error.value.reason == code


def test_a_value_of_another_type_is_refused() -> None:
    with pytest.raises(TypeMismatch, match="must be int, not str"):
        replicas(on_ring(), "shop.lines", (ORDER, "7"))


def test_a_router_calls_back_when_nodes_change_and_not_otherwise(client: Client) -> None:
    seen: list[int] = []
    close = Router(client).on_change(lambda state: seen.append(state.epoch))
    for command in (commands.Noop(), commands.register_node("n1", "127.0.0.1:7001"), commands.Noop()):
        client.direct.submit(command)
    registered = client.read_barrier().epoch - 1
    assert seen == [registered]
    close()
    client.direct.submit(commands.register_node("n2", "127.0.0.1:7002"))
    client.read_barrier()
    assert seen == [registered]
