"""Watching operations: who watches before anything has begun is told so, and sees it."""

from __future__ import annotations

from typing import Any

from ringlog.cli.operation import Looks


def views(**stages: str) -> list[dict[str, Any]]:
    return [{"id": name, "stage": stage} for name, stage in stages.items()]


def test_a_join_that_was_just_asked_for_is_waited_for() -> None:
    looks = Looks(may_begin=True)
    ended = views(a="finished")
    assert looks.is_news(ended)
    assert not looks.is_over(ended)
    assert [looks.waits_for_the_first() for _ in range(2)] == [True, False], "it is said once"
    assert not looks.is_news(ended)
    begun = ended + views(b="prepared")
    assert looks.is_news(begun)
    assert not looks.is_over(begun)
    done = views(a="finished", b="finished")
    assert looks.is_news(done)
    assert looks.is_over(done)


def test_one_that_begins_and_ends_between_two_looks_is_not_missed() -> None:
    looks = Looks(may_begin=True)
    looks.is_news([])
    assert not looks.is_over([])
    looks.is_news(views(b="cancelled"))
    assert looks.is_over(views(b="cancelled"))


def test_nothing_is_said_while_something_is_in_flight_and_one_that_has_ended_is_over_at_once() -> None:
    looks = Looks(may_begin=True)
    looks.is_news(views(a="prepared"))
    assert not looks.waits_for_the_first()
    alone = Looks(may_begin=False)
    alone.is_news(views(a="finished"))
    assert alone.is_over(views(a="finished"))
