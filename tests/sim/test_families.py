"""Runs of the simulator about one subject each: zones, columns, batches, clocks, peers, members, racks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from ringlog.kernel.commands.schema.batch import SchemaBatch
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import DropTable
from ringlog.kernel.fold import fold
from ringlog.kernel.invariants.check import violations
from ringlog.kernel.values import Command, Replication
from ringlog_sim.devices.world import MS, Chance
from ringlog_sim.families.schema import batched
from ringlog_sim.mutants.plant import Mutant, planted
from ringlog_sim.prefix import cluster_id_of, registration
from ringlog_sim.runner.run import RunReport, run_script
from ringlog_sim.runner.script import PROFILES, Action, Script, draw_script, from_json, to_json
from ringlog_sim.runner.search import SearchResult, reports, run_seed
from ringlog_sim.shape import RACK_SHARE, ClusterShape
from ringlog_sim.stories.column_rename import PROFILE as COLUMNS
from ringlog_sim.stories.members import ASKED, SIZES, STEP
from ringlog_sim.stories.members import PROFILE as MEMBERS
from ringlog_sim.stories.peer_logs import LIES
from ringlog_sim.stories.story import AGENT_HOSTS
from ringlog_sim.stories.zones import PROFILE as ZONES
from ringlog_sim.stories.zones import STEPS
from tests.kernel.entries import TABLE, applied, entry, founded, with_normal_nodes
from tests.sim.test_losses import Befalls, played

RUNS = 8


def test_the_profile_of_zones_meets_what_it_is_about() -> None:
    """Moves that end, are cancelled, begin anew; rebalancers that are taken over; and nothing that checks object to."""
    did: Counter[tuple[str, ...]] = Counter()
    for seed in range(1, RUNS + 1):
        report = run_seed(seed, ZONES)
        assert not report.rule, (seed, report.rule, report.detail)
        did += report.did
    assert did["action", "with_role"] == RUNS
    kinds = ("CreateZone", "AlterZone", "SetDataNodes", "TriggerRebalance", "SwitchStable", "CancelRebalance")
    for kind in (*kinds, "FinishCancel", "TakeOver"):
        assert did["entry", kind, "applied"], kind


RICH = (2, 5, 9, 11, 22, 25, 26, 29, 43, 50)
"""Seeds of which each has something that not every run has. Where the profile draws otherwise,
``ringlog sim run --profile zones --seeds N`` counts what another seed has.
"""


def test_the_runs_contain_what_the_profile_is_said_to_contain() -> None:
    """CDC rows and registers of tables that a zone places, restarts of replicas that begin and end, disks that fail
    and say so, nodes that die at each kind of entry that leads data on, and resets of partitions with data: more than
    one node survives, most survive and somebody admits a loss or nobody does, and one that nobody admits waits.
    """
    did: Counter[tuple[str, ...]] = Counter()
    for seed in RICH:
        report = run_seed(seed, ZONES)
        assert not report.rule, (seed, report.rule, report.detail)
        did += report.did
    wanted = [("zone data", what) for what in ("steps", "registers", "cdc rows", "resets", "salvaged")]
    wanted += [("zone data", f"resets of most{how}") for how in ("", ", no loss admitted")]
    wanted += [("zone data", "stuck, no loss admitted")]
    wanted += [("zone restart", what) for what in ("begun", "over")]
    wanted += [("zone word", what) for what in ("has", "returned", "copy", "failed")]
    wanted += [("moment", step, "crash") for step in sorted(set(STEPS))]
    assert [what for what in wanted if not did[what]] == []


# Columns that are dropped, renamed and made anew on the simulated world.


def test_seeds_break_no_promise_and_exercise_all_of_it() -> None:
    found = SearchResult()
    for report in reports(range(1, 13), COLUMNS, jobs=1):
        found.add(report)
    assert [(r.seed, r.rule, r.detail) for r in found.failures] == []
    did = {key[1]: count for key, count in found.did.items() if key[0] == "columns"}
    assert min(did[what] for what in ("seen on a node", "seen in the CDC log", "dropped")) > 10


# Commands about tables come in batches now and then, which apply, and which the check of tablets follows.


def test_batches_are_drawn_and_mostly_apply() -> None:
    empty = applied(with_normal_nodes(founded(), 2), CreateKeyspace("ks", Replication("tablets", 1)))
    outcomes = Counter[str]()
    for seed in range(60):
        state = empty
        commands: tuple[Command, ...] = (TABLE, DropTable("ks", "t"))
        for number, command in enumerate(commands):
            drawn = batched(command, Chance(seed, f"batch/{number}"))
            folded = fold(state, entry(state, drawn))
            assert violations(folded.state, state) == ()
            if isinstance(drawn, SchemaBatch):
                outcomes[folded.outcome.kind.value] += 1
            state = folded.state
    assert outcomes["applied"] > outcomes["refused"] > 0, outcomes


# Nodes and agents whose clocks are ahead settle verdicts far ahead; then the clocks are right, and that is lowered.


AHEAD_MS = 600_000
WRONG = ("n1", "agents-1", "agents-2")
SEEDS = (1, 2)
"""Seeds in which a node settles in time."""

UNCUT = Mutant(
    "lowered_uncut",
    "ringlog.kernel.commands.cdc.clock:decide_lower_settled_time",
    "lowered_to(state, command.until, context.epoch)",
    "type(state.settled)(command.until, 0, state.settled.leeways, context.epoch)",
    "a leeway that was to count from the time that was taken back never does",
    1,
)


def story(seed: int) -> RunReport:
    """The settled time is ten minutes ahead when a node begins to join and a setting changes."""
    happens: list[Befalls] = [
        *((at, "clock", (name, sign * AHEAD_MS)) for at, sign in ((300, 1), (2_000, -1)) for name in WRONG),
        *((at, "burst", (5,)) for at in (600, 1_000, 1_400, 4_500, 75_000)),
        (2_500, "set", ("cdc_leeway_us", 3_000_000)),
        (3_500, "start", ("n2",)),
        (5_000, "lower_settled", ()),
    ]
    return played(seed, happens, ClusterShape(1, 1, 1, 1, 10_000, False), calm=80_000)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_settled_time_of_the_future_is_lowered_under_load(seed: int) -> None:
    report = story(seed)
    assert not report.rule, f"{report.rule}: {report.detail}"
    assert report.did["command", "LowerSettledTime", "AppliedResult"], report.did


def test_a_planted_bug_is_found() -> None:
    with planted(UNCUT):
        assert story(SEEDS[0]).rule == "invariant_broken", UNCUT.bug


# Nodes that learn of the log from each other while the broker is away from them, and peers that lie.


PEERS_SEEDS = range(1, 19)


def test_nodes_learn_from_each_other_and_nobody_serves_it() -> None:
    found = SearchResult()
    for report in reports(PEERS_SEEDS, "peers", jobs=1):
        found.add(report)
    assert [(one.seed, one.rule, one.detail) for one in found.failures] == []
    heard = {key[1] for key in found.did if key[0] == "peers"}
    assert heard >= {"entries", "refuted", "bad_entries", "foreign_cluster"}, "in more seeds there is more"


def test_each_run_of_the_profile_has_nodes_that_ask_and_lies_of_all_kinds_come() -> None:
    scripts = [draw_script(seed, PROFILES["peers"]) for seed in range(60)]
    assert all(any(action.what == "ask_peers" for action in script.actions) for script in scripts)
    lies = {action.arguments[1] for script in scripts for action in script.actions if action.what == "lies"}
    assert lies == set(LIES)


# Members of the metadata service change while who takes part dies, and the copies that they keep are the log.


SHAPE = ClusterShape(founded=3, joining=0, factor=1, tokens=1, history=10_000, old=False)


def test_members_come_and_go_and_nobody_is_called_one_who_lacks_the_log() -> None:
    found = SearchResult()
    for report in reports(range(1, 16), MEMBERS, jobs=1):
        found.add(report)
    assert [(one.seed, one.rule, one.detail) for one in found.failures] == []
    did = {key[1]: count for key, count in found.did.items() if key[0] == "members"}
    steps = {"none to joining", "joining to member", "joining to leaving", "member to leaving", "leaving to none"}
    assert did.keys() >= {*steps, "copies begun", "copies begun with a snapshot"}
    assert did["joining to member"] > 10


def test_each_run_of_the_profile_has_members_and_all_wishes_come() -> None:
    scripts = [draw_script(seed, PROFILES[MEMBERS]) for seed in range(60)]
    assert all(any(action.what == "keep_log" for action in script.actions) for script in scripts)
    wishes = {action.arguments[0] for script in scripts for action in script.actions if action.what == "service"}
    assert wishes == set(ASKED)
    assert [size for size, _ in SIZES] == [1, 3, 5, 10]
    steps = [action for script in scripts for action in script.actions if action.arguments[:1] == (STEP,)]
    assert {action.arguments[3] for action in steps} == {"crash", "torn", "pause"}
    assert {action.arguments[1] for action in steps} == set(range(1, 9))


def test_everybody_dies_at_each_step_of_a_service_of_three() -> None:
    """All nodes and both hosts of agents, at each of six steps; then all is as wanted."""
    for nth in range(1, 7):
        dies = [("crash", "n1"), ("crash", "n2"), ("torn", "n3"), *(("crash", host) for host in AGENT_HOSTS)]
        happens: list[tuple[int, str, tuple[object, ...]]] = [(0, "keep_log", ()), (100, "service", ("automatic",))]
        for what, host in dies:
            rest = (host, 500) if what == "crash" else (host,)
            happens.append((50, "when", (STEP, nth, 0, what, *rest)))
        actions = (Action(number, at * MS, what, rest) for number, (at, what, rest) in enumerate(happens))
        ordered = tuple(sorted(actions, key=lambda action: action.at))
        report = run_script(Script(nth, "small", SHAPE, 4_000 * MS, ordered))
        assert not report.rule, f"{nth}: {report.rule}: {report.detail}"
        assert report.did["members", "joining to member"] == 3
        assert report.did["moment", STEP, "crash"] == 4


# Runs in which each of two datacenters has two racks: how many have them, and that nothing else is another one.


RACKED_SEEDS = range(400)


def drawn(profile: str) -> list[Script]:
    return [draw_script(seed, PROFILES[profile]) for seed in RACKED_SEEDS]


def is_racked(script: Script) -> bool:
    return script.shape.racked and script.shape.datacenters == 2


def test_a_fifth_of_the_longer_runs_have_them() -> None:
    racked = sum(script.shape.racked for script in drawn("medium"))
    assert 0.7 * RACK_SHARE < racked / len(RACKED_SEEDS) < 1.3 * RACK_SHARE
    assert not any(script.shape.racked for script in drawn("small"))


def test_each_datacenter_has_two_racks_and_who_replaces_lies_where_the_other_lay() -> None:
    pairs = 0
    for script in filter(is_racked, drawn("medium")):
        shape = script.shape
        places = {n: (at.datacenter, at.rack) for n in range(1, 9) for at in [registration(shape, n)]}
        assert len(set(places.values())) == 4
        without = replace(shape, racked=False)
        assert len({(at.datacenter, at.rack) for at in (registration(without, n) for n in range(1, 9))}) == 2
        for newcomer, founder in (one.arguments for one in script.actions if one.what == "replace"):
            assert places[int(newcomer[1:])] == places[int(founder[1:])]
            pairs += 1
    assert pairs, "somebody is replaced"


def test_racks_are_drawn_beside_all_else() -> None:
    """Else each seed would be another run than before, and each saved script."""
    shape = next(filter(is_racked, drawn("medium"))).shape
    without = replace(shape, racked=False)
    assert repr(shape) == repr(without)
    assert cluster_id_of(shape) == cluster_id_of(without)


def test_a_run_with_them_breaks_no_promise_and_its_script_comes_back() -> None:
    script = next(filter(is_racked, drawn("medium")))
    assert from_json(to_json(script)) == script
    report = run_script(script)
    assert (report.rule, report.detail) == ("", "")
