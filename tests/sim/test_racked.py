"""Runs in which each of two datacenters has two racks: how many have them, and that nothing else is another one."""

from __future__ import annotations

from dataclasses import replace

from ringlog.sim.prefix import cluster_id_of, registration
from ringlog.sim.racked import SHARE
from ringlog.sim.run import run_script
from ringlog.sim.script import PROFILES, Script, draw_script, from_json, to_json

SEEDS = range(400)


def drawn(profile: str) -> list[Script]:
    return [draw_script(seed, PROFILES[profile]) for seed in SEEDS]


def is_racked(script: Script) -> bool:
    return script.shape.racked and script.shape.datacenters == 2


def test_a_fifth_of_the_longer_runs_have_them() -> None:
    racked = sum(script.shape.racked for script in drawn("medium"))
    assert 0.7 * SHARE < racked / len(SEEDS) < 1.3 * SHARE
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
