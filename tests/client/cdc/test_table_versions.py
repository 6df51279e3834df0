"""Table versions: the table of a row by its name and its epoch, and names that collide."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from ringlog.client.cdc.copies.names import unique_names
from ringlog.client.cdc.table_versions import UNKNOWN_EPOCH, NamePeriod, TableVersions
from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.commands.schema.keyspaces import DropKeyspace
from ringlog.kernel.commands.schema.tables import AlterTable, DropTable
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.kernel.schema.table_versions import NAMED_US
from ringlog.kernel.values import Column, Command, replace
from tests.kernel.commands.test_schema import ready
from tests.kernel.entries import TABLE, applied, uuid


def test_random_schemas_are_known_at_every_epoch() -> None:
    met = {"none": 0, "another": 0, "altered": 0}
    for seed in range(60):
        chance = Random(seed)
        state = ready()
        lives, history = TableVersions(), {state.epoch: state}
        lives.record_step(EMPTY_STATE, state)
        for number in range(chance.randint(1, 15)):
            name = chance.choice(("t", "T"))
            there = state.tables.get(f"ks.{name}")
            if there is None:
                commands = [replace(TABLE, name=name, id=uuid(number + 10, space=4))]
            elif chance.random() < 0.5:
                commands = [AlterTable("ks", name, (Column(f"n{number}", "int"),))]
            else:
                commands = [chance.choice((DropTable("ks", name), Noop()))]
            before, state = state, applied(state, *commands)
            lives.record_step(before, state)
            history[state.epoch] = state
        assert lives.epoch == state.epoch
        assert set(lives.current()) == set(state.tables)
        for epoch, at in history.items():
            for name in ("ks.t", "ks.T", "ks.nothing"):
                wanted, found = at.tables.get(name), lives.at(name, epoch)
                assert (found is None) == (wanted is None), (seed, name, epoch)
                if found is None or wanted is None:
                    met["none"] += 1
                    continue
                assert (found.id, found.columns) == (wanted.id, wanted.columns), (seed, name, epoch)
                newest = lives.at(name, 0)
                assert newest is not None
                met["another"] += newest.id != found.id
                met["altered"] += newest.id == found.id and newest.columns != found.columns
                assert _epochs(lives.period(name, found.id), history) == _had(history, name, found.id)
    assert min(met.values()) > 50, met


def test_a_stored_state_gives_the_same_answer_or_none() -> None:
    met = {"known": 0, "before": 0, "unknown": 0}
    for seed in range(40):
        chance, state = Random(seed), applied(ready(), SettleVerdicts(1))
        states = [state]
        for number in range(chance.randint(4, 14)):
            there = state.tables.get("ks.t")
            command: Command = replace(TABLE, id=uuid(number + 10, space=4))
            if there is not None:
                added = AlterTable("ks", "t", (Column(f"n{number}", "int"),))
                command = chance.choice((added, added, DropTable("ks", "t"), Noop()))
            until = state.settled.until + 10
            state = applied(state, command, SettleVerdicts(until, until - 20 if until > 45 else 0))
            states.append(state)
        whole, begun = TableVersions(), chance.randrange(1, len(states))
        later = TableVersions()
        for before, after in pairwise([EMPTY_STATE, *states]):
            whole.record_step(before, after)
        later.begin(states[begun])
        later.begin(states[-1])
        for before, after in pairwise(states[begun:]):
            later.record_step(before, after)
        assert (later.epoch, later.current().keys()) == (whole.epoch, whole.current().keys())
        for at in states:
            if not later.knows("ks.t", at.epoch):
                assert at.epoch < states[begun].epoch
                met["unknown"] += 1
            elif "ks.t" in at.tables:
                found, wanted = later.at("ks.t", at.epoch), at.tables["ks.t"]
                assert found is not None
                assert (found.id, found.columns) == (wanted.id, wanted.columns), (seed, at.epoch)
                met["before" if at.epoch < states[begun].epoch else "known"] += 1
        assert later.knows("ks.t", UNKNOWN_EPOCH)
        assert not later.knows("ks.other", 1)
        assert whole.knows("ks.other", 1)
    assert min(met.values()) > 20, met


def test_a_look_back_gives_the_tables_of_all_epochs() -> None:
    """A state in the middle, and the states folded up to it later from the start or from another state."""
    met = {"forgotten": 0, "still": 0, "passed_over": 0}
    for seed in range(80):
        chance, states = Random(seed), [ready(), applied(ready(), SettleVerdicts(1))]
        state = states[-1]
        for number in range(chance.randint(4, 14)):
            name = chance.choice(("t", "u"))
            command: Command = replace(TABLE, name=name, id=uuid(number + 10, space=4))
            if f"ks.{name}" in state.tables:
                added = AlterTable("ks", name, (Column(f"n{number}", "int"),))
                command = chance.choice((added, DropTable("ks", name), Noop()))
            until = state.settled.until + NAMED_US
            for one in (command, SettleVerdicts(until, max(0, until - 2 * NAMED_US))):
                state = applied(state, one)
                states.append(state)
        first, begun = sorted(chance.sample(range(len(states)), 2))
        first = chance.choice((first, -1))
        whole, later, earlier = TableVersions(), TableVersions(), TableVersions()
        steps = list(pairwise([EMPTY_STATE, *states]))
        for before, after in steps:
            whole.record_step(before, after)
        later.begin(states[begun])
        for before, after in steps[begun + 1 :]:
            later.record_step(before, after)
        if first >= 0:
            earlier.begin(states[first])
        for before, after in steps[first + 1 : begun + 1]:
            earlier.record_step(before, after)
        for table in (table for name in ("ks.t", "ks.u") for table in later.all_of(name)):
            life, wanted = (one.period(f"ks.{table.name}", table.id) for one in (later, whole))
            met["passed_over"] += any(wanted.has(at.epoch) and not life.knows(at.epoch) for at in states)
        known = [(name, at) for name in ("ks.t", "ks.u") for at in states if later.knows(name, at.epoch)]
        later.extend_back(earlier)
        assert later.began == earlier.began
        for name in ("ks.t", "ks.u"):
            for at in states:
                if not later.knows(name, at.epoch):
                    assert at.epoch < states[first].epoch
                    met["still"] += 1
                elif at.epoch >= earlier.began:
                    assert later.at(name, at.epoch) == whole.at(name, at.epoch), (seed, name, at.epoch)
                    met["forgotten"] += (name, at) not in known
            for table_id in {table.id for table in later.all_of(name)}:
                life, wanted = later.period(name, table_id), whole.period(name, table_id)
                assert life.known_from <= earlier.began
                for epoch in (at.epoch for at in states if at.epoch >= max(life.known_from, earlier.began)):
                    assert life.has(epoch) == wanted.has(epoch), (seed, name, epoch)
    assert min(met.values()) > 20, met


def _epochs(life: NamePeriod, history: dict[int, ClusterState]) -> list[int]:
    return [epoch for epoch in history if life.has(epoch)]


def _had(history: dict[int, ClusterState], name: str, table_id: str) -> list[int]:
    return [epoch for epoch, state in history.items() if name in state.tables and state.tables[name].id == table_id]


def test_a_row_without_an_epoch_belongs_to_the_last_table_of_its_name() -> None:
    lives, state = TableVersions(), ready()
    second = replace(TABLE, id=uuid(9, space=4))
    ids = []
    for command in (TABLE, DropTable("ks", "t"), second, DropTable("ks", "t"), DropKeyspace("ks")):
        before, state = state, applied(state, command)
        lives.record_step(before, state)
        found = lives.at("ks.t", 0)
        assert found is not None
        ids.append(found.id)
    assert ids == [TABLE.id, TABLE.id, second.id, second.id, second.id]
    one, other = (lives.period("ks.t", table.id) for table in lives.all_of("ks.t"))
    assert (one.has(0), other.has(0)) == (False, True)


def test_the_first_of_names_that_differ_in_case_keeps_its_own() -> None:
    assert unique_names(["v", "V", "x", "v$2"]) == {"v": "v", "V": "V$2", "x": "x", "v$2": "v$2$2"}
    assert unique_names(["V", "W"], ["v", "V$2"]) == {"V": "V$3", "W": "W"}
