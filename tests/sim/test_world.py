"""Time, hosts and links of the simulated world."""

from __future__ import annotations

import pytest

from ringlog_sim.devices.world import MS, SECOND, PowerCut, Signal, SimWorld, Unanswered


def test_events_of_one_time_keep_their_order() -> None:
    world, seen = SimWorld(1), []
    for name in "abc":
        world.on(None, 5, seen.append, name)
    world.on(None, 3, seen.append, "first")
    world.run(10)
    assert seen == ["first", "a", "b", "c"]
    assert world.now == 10


def test_a_process_sleeps_and_waits() -> None:
    world, signal, seen = SimWorld(1), Signal(), []

    def work():
        yield 5 * MS
        seen.append(("slept", world.now))
        seen.append(("signalled", (yield signal, SECOND), world.now))
        seen.append(("timed out", (yield signal, SECOND), world.now))

    world.spawn(world.host("h"), "work", work())
    world.on(None, 7 * MS, lambda _: signal.fire())
    world.run(10 * SECOND)
    assert seen == [("slept", 5 * MS), ("signalled", True, 7 * MS), ("timed out", False, 7 * MS + SECOND)]


def test_messages_of_a_crashed_process_still_arrive() -> None:
    world, seen = SimWorld(1), []
    host, other = world.host("h"), world.host("other")

    def work():
        world.send(host, other, seen.append, "sent before the crash")
        yield MS
        seen.append("never")

    world.spawn(host, "work", work())
    world.on(None, 0, lambda _: None)
    world.run(10)
    world.crash(host)
    world.boot(host)
    world.run(SECOND)
    assert seen == ["sent before the crash"]


def test_a_paused_host_continues_in_order() -> None:
    world, seen = SimWorld(1), []
    host = world.host("h")

    def work():
        for _ in range(3):
            yield MS
            seen.append(world.now)

    world.spawn(host, "work", work())
    world.run(MS + 500)
    world.pause(host, SECOND)
    world.send(world.host("other"), host, lambda _: seen.append("message"))
    world.run(2 * SECOND)
    assert seen[0] == MS
    resumed = MS + 500 + SECOND
    assert set(seen[1:]) == {resumed, resumed + MS, "message"}


def test_a_link_keeps_order_except_for_late_messages() -> None:
    world, seen = SimWorld(1), []
    a, b = world.host("a"), world.host("b")
    for number in range(50):
        world.send(a, b, seen.append, number)
    world.run(SECOND)
    assert seen == list(range(50))
    world.link("a", "b").late = 0.5
    for number in range(50):
        world.send(a, b, seen.append, number)
    world.run(world.now + 10 * SECOND)
    assert sorted(seen[50:]) == list(range(50))
    assert seen[50:] != list(range(50))


@pytest.mark.parametrize("cut", [("a", "b"), ("b", "a")])
def test_a_call_over_a_one_way_cut_may_take_effect(cut: tuple[str, str]) -> None:
    world, effects, outcomes = SimWorld(1), [], []
    a, b = world.host("a"), world.host("b")
    world.link(*cut).cut = True

    def ask(answer):
        effects.append("done")
        answer(1)

    def work():
        try:
            outcomes.append((yield from world.call(a, b, ask, SECOND)))
        except Unanswered:
            outcomes.append("unanswered")

    world.spawn(a, "work", work())
    world.run(5 * SECOND)
    assert outcomes == ["unanswered"]
    assert effects == ([] if cut == ("a", "b") else ["done"])


def test_a_torn_write_exists_or_not_and_ends_the_process() -> None:
    kept = set()
    for seed in range(20):
        world, after = SimWorld(seed), []
        host = world.host("h")
        host.disk["x"] = "old"
        host.tears = True

        def work(world=world, host=host, after=after):
            yield 1
            world.store(host, "x", "new")
            after.append("went on")

        world.spawn(host, "work", work())
        world.run(SECOND)
        assert not host.up
        assert after == []
        kept.add(host.disk["x"])
    assert kept == {"old", "new"}
    host.tears = True
    with pytest.raises(PowerCut):
        world.store(host, "x", "newer")


def test_fingerprints_depend_on_the_seed_only() -> None:
    def fingerprint(seed: int) -> int:
        world = SimWorld(seed)
        a, b = world.host("a"), world.host("b")
        for _ in range(30):
            world.send(a, b, lambda _: None)
        world.run(SECOND)
        return world.fingerprint

    assert fingerprint(1) == fingerprint(1)
    assert fingerprint(1) != fingerprint(2)
