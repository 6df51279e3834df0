"""Decisions of the validator: group commit, stable answers, limits, and valid requests."""

from __future__ import annotations

import pytest

from ringlog.kernel.commands.cdc.generations import CommitCdcGeneration
from ringlog.kernel.commands.cdc.writers import AdvanceCdcWriter, RegisterCdcWriter
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.encoding.encoder import command_digest
from ringlog.kernel.values import replace
from ringlog.log.kafka.topics import RECORD_BYTES_MAX
from ringlog.protocol.submission.results import CommitOutcome
from ringlog.protocol.validator.core import (
    add_rejections,
    add_requests,
    begin_batch,
    extend_batch,
    join_batch,
    settle_batch,
)
from ringlog.protocol.validator.values import (
    BATCH_ENTRIES_MAX,
    PART_ENTRIES,
    Ack,
    CommitChain,
    DecideAfterBarrier,
    NextStep,
    NoteApplied,
    Publish,
    SendEntries,
    StopInstance,
    Validator,
)
from ringlog.wire.records import CommandRequest, Result, encode_result
from ringlog.wire.senders import SENDER_BYTES_MAX

from .world import BAD, GOOD, NOW, World


def validator(world: World, term: int = 1) -> Validator:
    world.take_over(term)
    return Validator(f"instance-{term}", term)


def offer(world: World, core: Validator, *requests: CommandRequest | None) -> NextStep:
    first = core.arrived + 1
    core = add_requests(core, [(offset, (request,)) for offset, request in enumerate(requests, start=first)]).validator
    return begin_batch(core, world.state, NOW, world.draw, part=BATCH_ENTRIES_MAX)


def commit(step: NextStep) -> CommitChain:
    (effect,) = step.effects
    assert isinstance(effect, CommitChain)
    return effect


def published(step: NextStep) -> list[Result]:
    return [result for effect in step.effects if isinstance(effect, Publish) for result in effect.results]


def shown(step: NextStep) -> list[Result]:
    return [result for effect in step.effects if isinstance(effect, NoteApplied) for result in effect.results]


def acked(step: NextStep) -> list[int]:
    return [effect.offset for effect in step.effects if isinstance(effect, Ack)]


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def core(world: World) -> Validator:
    return validator(world)


def test_all_waiting_requests_form_one_chain(world: World, core: Validator) -> None:
    step = offer(world, core, *(world.request(Noop()) for _ in range(5)))
    chain = commit(step).chain
    assert len(chain.entries) == 5
    assert chain.base == world.state.epoch
    done = settle_batch(step.validator, world.land_all(chain))
    assert [result.outcome for result in shown(done)] == ["applied"] * 5
    assert [result.epoch for result in shown(done)] == [4, 5, 6, 7, 8]
    assert done.effects[-1] == Ack(4)
    assert done.validator.waiting == ()
    assert done.validator.batch is None


def test_an_applied_request_gets_a_result_if_it_asks_for_one(world: World, core: Validator) -> None:
    asked = replace(world.request(Noop()), answer_applied=True)
    step = offer(world, core, asked, world.request(Noop()))
    done = settle_batch(step.validator, world.land_all(commit(step).chain))
    (result,) = published(done)
    assert (result.request_id, result.outcome, result.epoch) == (asked.request_id, "applied", 4)
    assert [one.epoch for one in shown(done)] == [5]
    assert not done.validator.answers, "the log contains the answer"
    for term in (1, 2):
        repeated = offer(world, done.validator if term == 1 else validator(world, term), asked)
        assert [(one.outcome, one.epoch, one.term) for one in published(repeated)] == [("applied", 4, term)]


def test_a_lost_entry_gives_no_result(world: World, core: Validator) -> None:
    step = offer(world, core, replace(world.request(Noop()), answer_applied=True))
    chain = commit(step).chain
    world.direct()
    assert settle_batch(step.validator, world.land_all(chain)).effects == ()


def test_each_request_is_decided_on_the_state_after_earlier_ones(world: World, core: Validator) -> None:
    register = RegisterCdcWriter("spark", "a")
    step = offer(world, core, world.request(register), world.request(register))
    done = settle_batch(step.validator, world.land_all(commit(step).chain))
    assert [result.outcome for result in shown(done)] == ["applied"]
    assert [result.code for result in published(done)] == ["incarnation_reused"]


def test_a_rejection_waits_for_the_entries_it_was_decided_on(world: World, core: Validator) -> None:
    register = RegisterCdcWriter("spark", "a")
    first, second = world.request(register), world.request(register)
    step = offer(world, core, first, second)
    chain = commit(step).chain
    world.direct()
    lost = settle_batch(step.validator, world.land_all(chain))
    assert lost.effects == ()
    assert [item.request for item in lost.validator.waiting] == [first, second]
    step = begin_batch(lost.validator, world.state, NOW, world.draw)
    done = settle_batch(step.validator, world.land_all(commit(step).chain))
    assert [result.request_id for result in shown(done)] == [first.request_id]
    assert [result.request_id for result in published(done)] == [second.request_id]


def test_only_answers_before_a_lost_entry_are_sent(world: World, core: Validator) -> None:
    early, good, late = world.request(BAD), world.request(Noop()), world.request(BAD)
    step = offer(world, core, early, good, late)
    done = settle_batch(step.validator, [CommitOutcome.LOST])
    assert [result.request_id for result in published(done)] == [early.request_id]
    assert [item.request for item in done.validator.waiting] == [good, late]
    assert acked(done) == [0]


def test_a_batch_of_rejections_alone_needs_no_entry(world: World, core: Validator) -> None:
    step = offer(world, core, world.request(BAD))
    (result,) = published(step)
    assert (result.outcome, result.code, result.term) == ("rejected", "unknown_setting", 1)
    assert step.effects[-1] == Ack(0)


def test_a_request_in_the_history_is_answered_applied_again(world: World, core: Validator) -> None:
    request = world.request(GOOD)
    step = offer(world, core, request)
    done = settle_batch(step.validator, world.land_all(commit(step).chain))
    again = offer(world, done.validator, request)
    assert shown(again) == shown(done)
    assert len(world.epochs_of(request.request_id)) == 1


def test_the_same_request_twice_in_one_batch_is_decided_once(world: World, core: Validator) -> None:
    request = world.request(Noop())
    step = offer(world, core, request, request)
    assert len(commit(step).chain.entries) == 1
    done = settle_batch(step.validator, world.land_all(commit(step).chain))
    assert len(shown(done)) == 2
    assert acked(done) == [1]


def test_a_rejected_copy_is_not_decided_again_after_a_state_change(world: World, core: Validator) -> None:
    """Otherwise the validator rejects the first copy and applies the second one, in the same batch."""
    advance = world.request(AdvanceCdcWriter("spark", "a", NOW, 0))
    step = offer(world, core, advance, world.request(RegisterCdcWriter("spark", "a")), advance)
    done = settle_batch(step.validator, world.land_all(commit(step).chain))
    assert [result.code for result in published(done)] == ["unknown_writer", "unknown_writer"]
    assert world.epochs_of(advance.request_id) == []


def test_a_request_id_with_another_command_is_refused_with_the_digest_before(world: World, core: Validator) -> None:
    request = world.request(Noop())
    other = world.request(GOOD, request.request_id)
    step = offer(world, core, request, other)
    done = settle_batch(step.validator, world.land_all(commit(step).chain))
    (refused,) = published(done)
    assert refused.code == "request_id_reused"
    assert refused.digest == command_digest(other.kind, other.version, other.payload)
    later = offer(world, done.validator, other)
    assert published(later)[0].code == "request_id_reused"


def test_an_applied_request_stays_applied_despite_another_command_with_its_id(world: World, core: Validator) -> None:
    request = world.request(GOOD)
    step = offer(world, core, request)
    core = settle_batch(step.validator, world.land_all(commit(step).chain)).validator
    step = offer(world, core, world.request(Noop(), request.request_id), request)
    assert [result.code for result in published(step)] == ["request_id_reused"]
    assert [result.request_id for result in shown(step)] == [request.request_id]


def test_an_answered_rejection_is_repeated_by_the_next_validator_in_its_term(world: World, core: Validator) -> None:
    advance = world.request(AdvanceCdcWriter("spark", "a", NOW, 0))
    answered = published(offer(world, core, advance))
    successor = add_rejections(validator(world, 2), answered)
    world.direct(RegisterCdcWriter("spark", "a"))
    again = offer(world, successor, advance)
    assert published(again) == [replace(answered[0], term=2, instance="instance-2")]
    assert world.epochs_of(advance.request_id) == []


def test_an_answered_id_with_another_command_is_refused(world: World, core: Validator) -> None:
    bad = world.request(BAD)
    step = offer(world, core, bad)
    again = offer(world, step.validator, world.request(GOOD, bad.request_id))
    assert [result.code for result in published(again)] == ["request_id_reused"]


def test_an_answered_rejection_is_repeated_after_a_foreign_request_with_its_id(world: World, core: Validator) -> None:
    bad = world.request(BAD)
    step = offer(world, core, bad)
    again = offer(world, step.validator, world.request(Noop(), bad.request_id), bad)
    first = published(step)[0].code
    assert [result.code for result in published(again)] == ["request_id_reused", first]


def test_a_request_that_left_the_history_has_expired() -> None:
    world = World(history_entries=100)
    core = validator(world)
    request = world.request(GOOD, since_epoch=1)
    for _ in range(150):
        world.direct()
    step = offer(world, core, request)
    assert [result.outcome for result in published(step)] == ["expired"]
    assert step.validator.answers.get(request.request_id) is None


def test_a_future_epoch_is_refused(world: World, core: Validator) -> None:
    request = world.request(Noop(), since_epoch=world.state.epoch + 1)
    step = offer(world, core, request)
    assert [(result.outcome, result.code) for result in published(step)] == [("rejected", "request_expired")]
    world.direct()
    again = offer(world, step.validator, request)
    assert [result.outcome for result in published(again)] == ["rejected"]


def test_unknown_and_undecodable_commands_are_rejected_and_never_reach_the_log(world: World, core: Validator) -> None:
    good = world.request(GOOD)
    unknown = replace(world.request(), kind="DoWonders")
    newer = replace(world.request(), version=99)
    broken = replace(good, request_id=world.uuid(), payload=good.payload + b"\x00")
    step = offer(world, core, unknown, newer, broken)
    assert [result.code for result in published(step)] == ["unknown_command", "unknown_command", "undecodable"]


def test_an_invalid_request_is_acknowledged_in_order(world: World, core: Validator) -> None:
    assert acked(add_requests(core, [(0, ()), (1, ())])) == [1]
    core = add_requests(core, [(0, (world.request(),))]).validator
    assert acked(add_requests(core, [(1, ())])) == []


def test_repeated_offsets_are_processed_once(world: World, core: Validator) -> None:
    request = world.request()
    core = add_requests(core, [(0, (request,))]).validator
    assert len(add_requests(core, [(0, (request,)), (1, (world.request(),))]).validator.waiting) == 2


def test_late_requests_are_answered_before_they_are_acknowledged(world: World, core: Validator) -> None:
    """After a rebalance, a record of the previous assignment may overtake unanswered ones."""
    late, early = world.request(), world.request()
    step = begin_batch(add_requests(core, [(9, (late,))]).validator, world.state, NOW, world.draw)
    step = settle_batch(step.validator, world.land_all(commit(step).chain))
    assert acked(step) == [9]
    step = add_requests(step.validator, [(4, (early,)), (9, (late,))])
    assert [item.offset for item in step.validator.waiting] == [4, 9]
    assert acked(step) == []
    step = begin_batch(step.validator, world.state, NOW, world.draw)
    step = settle_batch(step.validator, world.land_all(commit(step).chain))
    assert [result.request_id for result in shown(step)] == [early.request_id, late.request_id]
    assert acked(step) == [9]


def test_requests_ahead_of_the_clock_are_rejected(world: World, core: Validator) -> None:
    world.direct(RegisterCdcWriter("spark", "a"))
    far = world.request(AdvanceCdcWriter("spark", "a", NOW + 60_000_001, 0))
    near = world.request(AdvanceCdcWriter("spark", "a", NOW + 60_000_000, 0))
    late = world.request(CommitCdcGeneration("generation-9", NOW + 120_000_001, "00"))
    step = offer(world, core, far, late, near)
    done = settle_batch(step.validator, world.land_all(commit(step).chain))
    assert [result.code for result in published(done)] == ["horizon_too_far_ahead", "timestamp_too_far_ahead"]
    assert [result.request_id for result in shown(done)] == [near.request_id]


def test_a_batch_is_bounded_by_count_and_by_the_history() -> None:
    world = World(history_entries=100)
    core = validator(world)
    requests = [world.request(Noop()) for _ in range(60)]
    step = offer(world, core, *requests)
    assert len(commit(step).chain.entries) == 25
    assert len(step.validator.waiting) == 35
    world = World()
    step = offer(world, validator(world), *(world.request(Noop()) for _ in range(BATCH_ENTRIES_MAX + 1)))
    assert len(commit(step).chain.entries) == BATCH_ENTRIES_MAX


def test_the_first_entries_of_a_batch_are_sent_during_later_decisions(world: World) -> None:
    requests = [world.request(Noop()) for _ in range(5 * PART_ENTRIES)]
    core = add_requests(validator(world), [(offset, (request,)) for offset, request in enumerate(requests)]).validator
    step, sizes = begin_batch(core, world.state, NOW, world.draw), []
    while isinstance(step.effects[0], SendEntries):
        (effect,) = step.effects
        sizes.append(len(effect.entries))
        step = extend_batch(step.validator, NOW, world.draw)
    whole = commit(step)
    assert sizes == [PART_ENTRIES, PART_ENTRIES, 2 * PART_ENTRIES]
    assert (whole.already_sent, len(whole.chain.entries)) == (4 * PART_ENTRIES, 5 * PART_ENTRIES)
    done = settle_batch(step.validator, world.land_all(whole.chain))
    assert [result.request_id for result in shown(done)] == [request.request_id for request in requests]


def test_an_unproven_rejection_waits_for_entries_in_transit(world: World) -> None:
    good = [world.request(Noop()) for _ in range(PART_ENTRIES)]
    unknown = replace(world.request(Noop()), kind="NoSuchCommand")
    requests = [*good, unknown, world.request(Noop())]
    core = add_requests(validator(world), [(offset, (request,)) for offset, request in enumerate(requests)]).validator
    step = extend_batch(begin_batch(core, world.state, NOW, world.draw, is_fresh=False).validator, NOW, world.draw)
    whole = commit(step)
    assert (whole.already_sent, len(whole.chain.entries)) == (PART_ENTRIES, PART_ENTRIES)
    assert [item.request for item in step.validator.waiting] == requests[PART_ENTRIES:]
    done = settle_batch(step.validator, world.land_all(whole.chain))
    assert [result.request_id for result in shown(done)] == [request.request_id for request in good]
    assert begin_batch(done.validator, world.state, NOW, world.draw, is_fresh=False).effects == (DecideAfterBarrier(),)
    fresh = begin_batch(done.validator, world.state, NOW, world.draw)
    assert [
        result.code for result in published(settle_batch(fresh.validator, world.land_all(commit(fresh).chain)))
    ] == ["unknown_command"]


def test_new_requests_join_a_running_batch(world: World) -> None:
    first, second = world.request(Noop()), world.request(Noop(), since_epoch=world.state.epoch + 1)
    step = offer(world, validator(world), first)
    assert commit(step).accepts_more
    joined = join_batch(step.validator, [(1, (second, first))], NOW, world.draw)
    whole = commit(joined)
    assert (whole.already_sent, len(whole.chain.entries), whole.accepts_more) == (1, 2, True), (
        "a client that saw the first entry sends a request based on it"
    )
    done = settle_batch(joined.validator, world.land_all(whole.chain))
    assert [result.request_id for result in shown(done)] == [one.request_id for one in (first, second, first)]
    assert acked(done) == [1]


def test_a_rejection_does_not_depend_on_entries_older_than_its_request(world: World) -> None:
    step = offer(world, validator(world), world.request(Noop()))
    bad, good = world.request(BAD), world.request(Noop())
    alone = join_batch(step.validator, [(1, (bad,))], NOW, world.draw)
    assert [item.request for item in alone.validator.waiting] == [bad]
    assert not commit(alone).accepts_more, "the next batch starts with it, behind a barrier"
    behind = join_batch(step.validator, [(1, (good, bad))], NOW, world.draw)
    assert not commit(behind).accepts_more, "a rejected client does not wait for other requests"
    done = settle_batch(behind.validator, world.land_all(commit(behind).chain))
    assert [result.request_id for result in published(done)] == [bad.request_id]


def test_an_instance_stops_when_a_higher_term_is_folded(world: World, core: Validator) -> None:
    core = add_requests(core, [(0, (world.request(),))]).validator
    world.take_over(2)
    (effect,) = begin_batch(core, world.state, NOW, world.draw).effects
    assert isinstance(effect, StopInstance)


def test_answers_are_kept_until_their_requests_expire() -> None:
    world = World(history_entries=100)
    core = validator(world)
    step = offer(world, core, world.request(BAD))
    for _ in range(1_200):
        world.direct()
    step = offer(world, step.validator, world.request(BAD))
    assert len(step.validator.answers) == 1


def test_a_head_at_the_maximum_time_stops_no_validator(world: World, core: Validator) -> None:
    world.state = replace(world.state, state_id="ffffffff-ffff-ffff-bfff-ffffffffffff")
    step = offer(world, core, world.request(Noop()))
    assert [result.code for result in published(step)] == ["state_id_not_above"]


def test_the_sender_in_an_entry_is_short_and_printable(world: World, core: Validator) -> None:
    asked = replace(world.request(Noop()), submitter="cli\x1b[8m host=ws7 on_behalf=" + "€" * 400_000)
    (made,) = commit(offer(world, core, asked)).chain.entries
    assert made.entry.submitter.startswith("cli?[8m host=ws7 on_behalf=€€€")
    assert made.entry.submitter.isprintable()
    assert len(made.entry.submitter.encode()) <= SENDER_BYTES_MAX


def test_every_answer_fits_into_a_record(world: World, core: Validator) -> None:
    """Names come from clients: the quoted part of a name is bounded, at four bytes a character."""
    asked = replace(world.request(GOOD), kind=chr(0x10FFFF) * 400_000, submitter="s" * 400_000)
    step = offer(world, core, asked)
    (answer,) = published(step)
    assert answer.code == "unknown_command"
    assert len(encode_result(answer)) < RECORD_BYTES_MAX // 100
