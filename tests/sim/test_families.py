"""Simulator runs with one subject each: zones, columns, batches, clocks, peers, members, racks."""

from __future__ import annotations

from collections import Counter

import pytest

from ringlog.kernel.commands.schema.batch import SchemaBatch
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import DropTable
from ringlog.kernel.fold import fold
from ringlog.kernel.invariants.check import violations
from ringlog.kernel.values import Command, Replication, replace
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
from tests.sim.test_losses import Befalls, play

RUNS = 8


def test_the_zones_profile_covers_its_subject() -> None:
    """Moves complete, are cancelled and restart; rebalancers are taken over; and no check fails."""
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
"""Seeds with events that not every run has.

If the profile draws other events, ``ringlog sim run --profile zones --seeds N`` counts the events of other seeds.
"""


def test_the_runs_contain_the_documented_events() -> None:
    """The runs contain CDC rows and registers of zone-placed tables, replica restarts, and disks that fail and report
    it.

    Nodes die at each kind of entry that moves data forward. Partitions with data are reset: several nodes survive, most
    survive with or without an admitted loss, and a reset without an admitted loss waits.
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


# Columns are dropped, renamed and recreated on the simulated world.


def test_seeds_break_no_promise_and_exercise_all_of_it() -> None:
    found = SearchResult()
    for report in reports(range(1, 13), COLUMNS, jobs=1):
        found.add(report)
    assert [(r.seed, r.rule, r.detail) for r in found.failures] == []
    did = {key[1]: count for key, count in found.did.items() if key[0] == "columns"}
    assert min(did[what] for what in ("seen on a node", "seen in the CDC log", "dropped")) > 10


# Some table commands come in batches, which apply, and the check of tablets follows them.


def test_most_batches_apply() -> None:
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


# Nodes and agents with fast clocks set the watermark far ahead; then their clocks are corrected and it is lowered.


AHEAD_MS = 600_000
WRONG = ("n1", "agents-1", "agents-2")
SEEDS = (1, 2)
"""Seeds with a watermark advance in time."""

UNCUT = Mutant(
    "lowered_uncut",
    "ringlog.kernel.commands.cdc.clock:decide_lower_settled_time",
    "lowered_to(state, command.until, context.epoch)",
    "type(state.settled)(command.until, 0, state.settled.leeways, context.epoch)",
    "a leeway that was to count from the time that was taken back never does",
    1,
)


def story(seed: int) -> RunReport:
    """Run a script: a node joins and a setting changes while the watermark is ten minutes ahead."""
    happens: list[Befalls] = [
        *((at, "clock", (name, sign * AHEAD_MS)) for at, sign in ((300, 1), (2_000, -1)) for name in WRONG),
        *((at, "burst", (5,)) for at in (600, 1_000, 1_400, 4_500, 75_000)),
        (2_500, "set", ("cdc_leeway_us", 3_000_000)),
        (3_500, "start", ("n2",)),
        (5_000, "lower_settled", ()),
    ]
    return play(seed, happens, ClusterShape(1, 1, 1, 1, 10_000, False), calm=80_000)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_future_watermark_is_lowered_under_load(seed: int) -> None:
    report = story(seed)
    assert not report.rule, f"{report.rule}: {report.detail}"
    assert report.did["command", "LowerSettledTime", "AppliedResult"], report.did


def test_a_planted_bug_is_found() -> None:
    with planted(UNCUT):
        assert story(SEEDS[0]).rule == "invariant_broken", UNCUT.bug


# Nodes learn log entries from each other while the broker is unreachable, and some peers lie.


PEERS_SEEDS = range(1, 19)


def test_nodes_learn_from_peers_and_do_not_serve_it() -> None:
    found = SearchResult()
    for report in reports(PEERS_SEEDS, "peers", jobs=1):
        found.add(report)
    assert [(one.seed, one.rule, one.detail) for one in found.failures] == []
    heard = {key[1] for key in found.did if key[0] == "peers"}
    assert heard >= {"entries", "refuted", "bad_entries", "foreign_cluster"}, "more seeds have more events"


def test_each_run_has_requests_to_peers_and_all_lies_occur() -> None:
    scripts = [draw_script(seed, PROFILES["peers"]) for seed in range(60)]
    assert all(any(action.what == "ask_peers" for action in script.actions) for script in scripts)
    lies = {action.arguments[1] for script in scripts for action in script.actions if action.what == "lies"}
    assert lies == set(LIES)


# Log replicas change while participants die, and their copies equal the log.


SHAPE = ClusterShape(founded=3, joining=0, factor=1, tokens=1, history=10_000, old=False)


def test_members_change_and_each_member_has_the_log() -> None:
    found = SearchResult()
    for report in reports(range(1, 16), MEMBERS, jobs=1):
        found.add(report)
    assert [(one.seed, one.rule, one.detail) for one in found.failures] == []
    did = {key[1]: count for key, count in found.did.items() if key[0] == "members"}
    steps = {"none to joining", "joining to member", "joining to leaving", "member to leaving", "leaving to none"}
    assert did.keys() >= {*steps, "copies begun", "copies begun with a snapshot"}
    assert did["joining to member"] > 10


def test_each_run_has_members_and_all_targets_occur() -> None:
    scripts = [draw_script(seed, PROFILES[MEMBERS]) for seed in range(60)]
    assert all(any(action.what == "keep_log" for action in script.actions) for script in scripts)
    wishes = {action.arguments[0] for script in scripts for action in script.actions if action.what == "service"}
    assert wishes == set(ASKED)
    assert [size for size, _ in SIZES] == [1, 3, 5, 10]
    steps = [action for script in scripts for action in script.actions if action.arguments[:1] == (STEP,)]
    assert {action.arguments[3] for action in steps} == {"crash", "torn", "pause"}
    assert {action.arguments[1] for action in steps} == set(range(1, 9))


def test_all_hosts_die_at_each_step_of_a_service_of_three() -> None:
    """All nodes and both agent hosts die at each of six steps; then the service reaches its target."""
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


# Runs in which each of two datacenters has two racks: their share, and no other changes.


RACKED_SEEDS = range(400)


def drawn(profile: str) -> list[Script]:
    return [draw_script(seed, PROFILES[profile]) for seed in RACKED_SEEDS]


def is_racked(script: Script) -> bool:
    return script.shape.racked and script.shape.datacenters == 2


def test_a_fifth_of_the_longer_runs_have_racks() -> None:
    racked = sum(script.shape.racked for script in drawn("medium"))
    assert 0.7 * RACK_SHARE < racked / len(RACKED_SEEDS) < 1.3 * RACK_SHARE
    assert not any(script.shape.racked for script in drawn("small"))


def test_each_datacenter_has_two_racks_and_replacements_keep_theirs() -> None:
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
    assert pairs, "a node is replaced"


def test_racks_do_not_change_other_draws() -> None:
    """Otherwise each seed and each saved script would be another run than before."""
    shape = next(filter(is_racked, drawn("medium"))).shape
    without = replace(shape, racked=False)
    assert repr(shape) == repr(without)
    assert cluster_id_of(shape) == cluster_id_of(without)


def test_a_run_with_racks_breaks_no_promise_and_replays() -> None:
    script = next(filter(is_racked, drawn("medium")))
    assert from_json(to_json(script)) == script
    report = run_script(script)
    assert (report.rule, report.detail) == ("", "")
