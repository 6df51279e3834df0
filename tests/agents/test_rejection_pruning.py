"""Bounds of rejections: they create no epochs, and the validator keeps and reloads a bounded number of them."""

from __future__ import annotations

import pytest

from ringlog.agents.roles.results import first_needed
from ringlog.kernel.values import replace
from ringlog.protocol.submission.results import CommitOutcome
from ringlog.protocol.validator.core import add_rejections, add_requests, begin_batch, is_floor_mark, settle_batch
from ringlog.protocol.validator.values import FORGOTTEN, CommitChain, NextStep, Publish, Validator
from ringlog.wire.records import REJECTED, CommandRequest, Result
from tests.agents.world import BAD, GOOD, NOW, World

MAX = 3


class Instance:
    """A validator with effects that complete at once; ``topic``: its published records, as the topic keeps them."""

    def __init__(self, world: World, topic: list[Result] | None = None) -> None:
        self.world = world
        self.topic: list[Result] = [] if topic is None else topic
        self.memory = add_rejections(Validator(world.uuid(), 1, answers_max=MAX), self.topic)

    def ask(self, *requests: CommandRequest, lose: bool = False) -> list[Result]:
        """Return the records published for these requests; ``lose``: another author's entry arrives before
        the batch.
        """
        first = self.memory.arrived + 1
        self.memory = add_requests(
            self.memory, [(offset, (request,)) for offset, request in enumerate(requests, start=first)]
        ).validator
        published: list[Result] = []
        while self.memory.waiting:
            published += self._carried_out(begin_batch(self.memory, self.world.state, NOW, self.world.draw), lose)
            lose = False
        self.topic += published
        return published

    def _carried_out(self, step: NextStep, lose: bool) -> list[Result]:
        self.memory = step.validator
        published: list[Result] = []
        for effect in step.effects:
            if isinstance(effect, CommitChain):
                if lose:
                    self.world.direct()
                commit_outcomes = self.world.land_all(effect.chain)
                published += self._carried_out(settle_batch(self.memory, commit_outcomes), False)
            elif isinstance(effect, Publish):
                published += effect.results
        return published


def rejections(world: World, count: int) -> list[CommandRequest]:
    return [world.request(BAD) for _ in range(count)]


@pytest.fixture
def world() -> World:
    made = World()
    made.take_over(1)
    return made


def test_a_batch_beyond_the_bound_ends_with_a_noop(world: World) -> None:
    instance = Instance(world)
    old = rejections(world, MAX)
    instance.ask(*old)
    assert len(instance.memory.answers) == MAX
    epoch = world.state.epoch
    published = instance.ask(*rejections(world, 1))
    assert world.state.epoch == epoch + 1, "a Noop of its own"
    assert [is_floor_mark(result) for result in published] == [False, True], "the mark comes last"
    assert (len(instance.memory.answers), instance.memory.floor) == (0, epoch + 1)

    (again,) = instance.ask(old[0])
    assert (again.outcome, again.code) == (REJECTED, FORGOTTEN)
    assert f"is below {epoch + 1}" in again.detail
    (honest,) = instance.ask(replace(world.request(BAD), since_epoch=world.state.epoch))
    assert honest.code == "unknown_setting", "a client that has seen the Noop gets a normal decision"
    late = world.request(GOOD, since_epoch=epoch)
    assert instance.ask(late)[0].code == FORGOTTEN, "an earlier refusal is unknown"
    assert all(entry.request_id != late.request_id for entry in world.applied)


def test_applied_requests_are_known_from_the_history(world: World) -> None:
    instance = Instance(world)
    applied = world.request(GOOD)
    instance.ask(applied)
    instance.ask(*rejections(world, MAX + 1))
    instance.ask(*rejections(world, 1))
    assert instance.memory.floor > applied.since_epoch
    assert [result for result in instance.ask(applied) if result.outcome == REJECTED] == []


def test_a_lost_noop_removes_nothing(world: World) -> None:
    instance = Instance(world)
    instance.ask(*rejections(world, MAX))
    instance.memory = add_requests(instance.memory, [(instance.memory.arrived + 1, (world.request(BAD),))]).validator
    step = begin_batch(instance.memory, world.state, NOW, world.draw)
    (commit,) = (effect for effect in step.effects if isinstance(effect, CommitChain))
    settled = settle_batch(step.validator, [CommitOutcome.LOST] * len(commit.chain.entries))
    assert settled.validator.floor == 0
    assert len(settled.validator.answers) >= MAX
    assert not any(
        is_floor_mark(one) for effect in settled.effects if isinstance(effect, Publish) for one in effect.results
    )


def test_the_next_instance_reads_only_results_above_the_floor(world: World) -> None:
    first = Instance(world)
    forgotten = rejections(world, MAX)
    first.ask(*forgotten)
    first.ask(*rejections(world, 1))
    kept = rejections(world, 2)
    first.ask(*kept)
    numbered = list(enumerate(first.topic))
    begins = first_needed(numbered, len(numbered))
    assert [is_floor_mark(result) for _, result in numbered[begins:]] == [True, False, False]

    for topic in (first.topic, first.topic[begins:]):
        second = Instance(world, list(topic))
        assert second.memory.floor == first.memory.floor
        assert set(second.memory.answers) == {request.request_id for request in kept}
        assert second.ask(forgotten[0])[0].code == FORGOTTEN
        assert second.ask(kept[0])[0].code == "unknown_setting"


def test_memory_and_topic_are_bounded_for_any_number_of_rejections(world: World) -> None:
    instance = Instance(world)
    for _ in range(100):
        instance.ask(*rejections(world, 2))
        assert len(instance.memory.answers) <= MAX + 2
        numbered = list(enumerate(instance.topic))
        del instance.topic[: first_needed(numbered, len(numbered))]
        assert len(instance.topic) <= MAX + 4
    ahead = replace(world.request(BAD), since_epoch=2**40)
    for _ in range(100):
        instance.ask(replace(ahead, request_id=world.uuid()))
        assert len(instance.memory.answers) <= MAX + 1, "also of requests that claim a future epoch"


def test_a_floor_above_a_cut_log_does_not_reject_every_request(world: World) -> None:
    """Results survive a cut of the log; only new entries raise it above the floor."""
    first = Instance(world)
    first.ask(*rejections(world, MAX))
    first.ask(*rejections(world, 1))
    cut = World()
    cut.take_over(1)
    assert first.memory.floor > cut.state.epoch
    second = Instance(cut, first.topic)
    now, before = cut.request(GOOD), cut.request(GOOD, since_epoch=cut.state.epoch - 1)
    assert [result.code for result in second.ask(before)] == [FORGOTTEN]
    assert second.ask(now) == []
    assert cut.applied[-1].request_id == now.request_id


def test_without_rejections_the_whole_topic_is_trimmed() -> None:
    assert first_needed([], 17) == 17
