"""Acknowledgements count only if they belong to this log, in any order of arrival."""

from __future__ import annotations

from itertools import permutations

from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import replace
from ringlog.protocol.controller import Wait
from ringlog.protocol.coordinator.ack_book import (
    UNCOUNTED_MAX,
    WAITING_MAX,
    AckBook,
    ReadAcks,
    matches_log,
    read_acks,
    update_acks,
)
from ringlog.protocol.effects import run_steps
from ringlog.wire.records import NodeAck
from tests.kernel.entries import applied, founded, node, uuid

FOUNDED = applied(founded(), node(1))
ME = uuid(1, space=2)


def grown(state: ClusterState, entries: int) -> ClusterState:
    return applied(state, *[Noop()] * entries)


def ack_of(state: ClusterState) -> NodeAck:
    return NodeAck(state.cluster_id, ME, "i", state.epoch, state.epoch, (), 0, 0, (), state.state_id)


def test_an_acknowledgement_counts_in_its_own_log_from_its_epoch_on() -> None:
    early, late = grown(FOUNDED, 1), grown(FOUNDED, 5)
    ack = ack_of(early)
    assert matches_log(ack, early)
    assert matches_log(ack, late)
    assert not matches_log(ack_of(late), early)
    assert not matches_log(replace(ack, state_id=uuid(77)), late)
    assert not matches_log(replace(ack, cluster_id=uuid(78)), late)
    assert not matches_log(replace(ack, node=uuid(9, space=2)), late)
    assert not matches_log(replace(ack, state_id=""), late)


def test_an_acknowledgement_from_the_future_keeps_the_previous_one_valid() -> None:
    states = [grown(FOUNDED, number) for number in range(4)]
    for order in permutations(range(4)):
        book = AckBook()
        for number in order:
            book.take(number, ack_of(states[number]))
            book.take(number, ack_of(states[number]))
        assert [book.newest(state)[ME].applied for state in states] == [state.epoch for state in states]


def test_an_acknowledgement_of_a_lost_history_does_not_count() -> None:
    book = AckBook()
    book.take(1, ack_of(FOUNDED))
    lost = replace(ack_of(grown(FOUNDED, 3)), state_id=uuid(77))
    book.take(2, lost)
    assert book.newest(grown(FOUNDED, 2)) == {ME: ack_of(FOUNDED)}
    assert book.newest(grown(FOUNDED, 8)) == {ME: ack_of(FOUNDED)}
    book.take(3, ack_of(grown(FOUNDED, 7)))
    assert book.newest(grown(FOUNDED, 8))[ME].applied == FOUNDED.epoch + 7


def test_the_book_is_bounded_and_reaches_the_newest_acknowledgement() -> None:
    book = AckBook()
    states = [grown(FOUNDED, number) for number in range(3)]
    book.take(0, ack_of(states[0]))
    for number in range(1, 10 * WAITING_MAX):
        book.take(number, replace(ack_of(states[1]), applied=10**6 + number, state_id=""))
    assert len(book._read[ME]) <= WAITING_MAX
    assert book.newest(states[1])[ME] == ack_of(states[0])
    book.take(10**4, ack_of(states[2]))
    assert book.newest(states[2])[ME] == ack_of(states[2])


def test_invented_nodes_neither_fill_the_book_nor_evict_a_node() -> None:
    book = AckBook()
    ack = ack_of(FOUNDED)
    book.take(0, ack)
    assert set(book.newest(FOUNDED)) == {ME}
    invented = [uuid(number, space=9) for number in range(UNCOUNTED_MAX + 5)]
    for offset, other in enumerate(invented, start=1):
        book.take(offset, replace(ack, node=other))
    assert set(book.nodes()) == {ME, *invented[5:]}
    book.take(UNCOUNTED_MAX + 10, replace(ack, node=invented[5]))
    book.take(UNCOUNTED_MAX + 11, replace(ack, node=invented[0]))
    assert set(book.nodes()) == {ME, *invented[7:], invented[5], invented[0]}
    assert set(book.newest(FOUNDED)) == {ME}


def test_a_repeated_acknowledgement_does_not_reset_its_node() -> None:
    early, late = grown(FOUNDED, 1), grown(FOUNDED, 2)
    for order in permutations(enumerate((early, late, early))):
        book = AckBook()
        for offset, state in order:
            book.take(offset, ack_of(state))
        assert book.newest(late)[ME].applied == late.epoch, order


def test_the_later_acknowledgement_of_one_epoch_counts() -> None:
    """A node whose disk has failed reports this at the epoch of its previous acknowledgement."""
    book = AckBook()
    for offset, rows in ((4, 0), (3, 7)):
        book.take(offset, replace(ack_of(FOUNDED), rows=rows))
    assert book.newest(FOUNDED)[ME].rows == 0


def test_a_book_restarts_if_its_trust_changes() -> None:
    """A driver restarts the book once (``None``). Earlier entries and a forged start are dropped."""
    forged, own = replace(ack_of(FOUNDED), incarnation="999@thief"), replace(ack_of(FOUNDED), incarnation="1@own")
    topic, outcomes = [(0, forged)], [[], None]

    def perform(effect: object) -> object:
        return list(topic) if isinstance(effect, ReadAcks) else outcomes.pop(0)

    acks = run_steps(read_acks(), perform)
    assert run_steps(update_acks(acks, Wait.NEWS), perform) is acks
    assert acks.newest(FOUNDED)[ME].incarnation == "999@thief"
    topic[:] = [(1, own)]
    assert run_steps(update_acks(acks, Wait.NEWS), perform).newest(FOUNDED)[ME].incarnation == "1@own"
