"""``ringlog tablet repair`` on a log in memory: all tablets in rounds, or one round and the command that continues."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ringlog.cli.placement import repair
from ringlog.cli.shared import submitting
from ringlog.client.client import Client
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.topology.movements import Join
from ringlog.kernel.values import Replication, TabletOptions
from ringlog.operator.rehearsal.rehearsal import acknowledgements
from ringlog.protocol.coordinator.core import CoordinatorView, propose
from tests.cli.authoring import authoring, run
from tests.kernel.entries import NODES, SEED, node
from tests.kernel.tablets.clusters import TABLE, create_table

COUNT = 8


def coordinate(client: Client) -> None:
    """Submit the coordinator's requests while every node acknowledges at once."""
    while True:
        state = client.read_barrier()
        asked = propose(CoordinatorView(state, acknowledgements(state, state.time), state.epoch, state.time))
        if not asked:
            return
        client.direct.submit(asked[0].command)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """Return a cluster of three nodes with a table in tablets."""
    with authoring(monkeypatch) as client:
        monkeypatch.setattr(repair, "connect", submitting.connect)
        for number in (1, 2, 3):
            client.direct.submit(node(number, rack="r"))
            client.direct.submit(Join(NODES[number - 1], (number * 100,), SEED))
            coordinate(client)
        client.direct.submit(CreateKeyspace("ks", Replication("tablets", 3)))
        client.direct.submit(create_table(tablets=TabletOptions(COUNT)))
        coordinate(client)
        yield client


def progress_then(client: Client, then: Callable[[], None] = lambda: None) -> Callable[..., Any]:
    def waited(*_: object) -> bool:
        coordinate(client)
        then()
        return True

    return waited


def test_without_numbers_all_tablets_are_repaired(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair, "newer", progress_then(client))
    status, out, err = run("tablet", "repair", TABLE)
    assert (status, err) == (0, "")
    assert out.splitlines()[-1] == f"{COUNT} tablets of {TABLE} are repaired"
    status, out, err = run("tablet", "repair", TABLE, "3", "5", "--json")
    assert (status, json.loads(out)["repaired"], json.loads(out)["failed"]) == (0, [3, 5], {}), err


def test_without_a_wait_it_names_the_command_that_continues(client: Client) -> None:
    status, out, err = run("tablet", "repair", TABLE, "--no-wait")
    assert (status, err) == (0, "")
    first, then = out.splitlines()
    started = len(client.read_barrier().tablets[TABLE].transitions)
    assert 0 < started < COUNT
    assert first.endswith(f", {started} of {COUNT} tablets")
    assert then.startswith(f"{COUNT - started} tablets remain. To continue: ringlog tablet repair {TABLE} ")
    assert run("tablet", "repair", TABLE, "--no-wait")[2].startswith("tablet_in_transition: ")
    coordinate(client)
    words = then.partition("ringlog ")[2].split()
    assert json.loads(run(*words, "--no-wait", "--json")[1])["outcome"] == "applied"


def test_an_interrupt_names_the_command_that_continues(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    status, _, err = run("tablet", "repair", TABLE, "--timeout", "0")
    assert (status, err.splitlines()[0]) == (1, f"still_in_flight: 0 of {COUNT} tablets are repaired")
    assert err.splitlines()[-1].startswith(f"to continue: ringlog tablet repair {TABLE} 0 1 2 ")

    def stop() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(repair, "newer", progress_then(client, stop))
    status, _, err = run("tablet", "repair", TABLE)
    assert status != 0
    assert f"to continue: ringlog tablet repair {TABLE} " in err


def test_a_wrong_table_or_tablet_is_refused(client: Client) -> None:
    assert run("tablet", "repair", "ks.none")[2].startswith("unknown_table: ")
    assert run("tablet", "repair", TABLE, "1", "99")[2].startswith("unknown_tablet: ")
    assert not client.read_barrier().tablets[TABLE].transitions
