"""Each source has one writer, and a writer's decisions about its source are permanent."""

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from ringlog.kernel.commands.cdc.writers import (
    POSITIONS_MAX,
    AdvanceCdcWriter,
    FenceCdcWriter,
    RegisterCdcWriter,
    source_owner,
)
from ringlog.kernel.fold import fold
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.values import Command, Position
from tests.kernel.commands.test_cdc import FIRST, SECOND, code, refused, writer
from tests.kernel.entries import applied, entry, founded

WRITES, OTHERS = "c.mutations", "c.others"


def fence(name: str, incarnation: str) -> FenceCdcWriter:
    return FenceCdcWriter(name, incarnation, (), "gone for good")


def test_a_source_has_one_unfenced_writer() -> None:
    state = applied(founded(), RegisterCdcWriter("w", FIRST, WRITES))
    assert code(state, RegisterCdcWriter("v", FIRST, WRITES)) == "source_in_use"
    assert code(state, RegisterCdcWriter("v", FIRST, "x" * 250)) == "bad_field"
    assert writer(applied(state, RegisterCdcWriter("w", SECOND, WRITES))).incarnation == SECOND
    both = applied(state, RegisterCdcWriter("v", FIRST, OTHERS))
    assert both.writers["v"].source == OTHERS
    assert code(both, RegisterCdcWriter("v", SECOND, WRITES)) == "source_in_use"
    free = applied(state, fence("w", FIRST), RegisterCdcWriter("v", FIRST, WRITES))
    assert code(free, RegisterCdcWriter("w", SECOND, WRITES)) == "source_in_use"


def test_the_rejection_names_the_writer_and_the_fence() -> None:
    state = applied(founded(), RegisterCdcWriter("orders", FIRST, WRITES))
    _, detail = refused(state, RegisterCdcWriter("typo", FIRST, WRITES))
    assert "orders logs c.mutations" in detail
    assert "fence" in detail


def test_a_writer_without_a_source_blocks_only_new_names() -> None:
    old = applied(founded(), RegisterCdcWriter("v", FIRST), RegisterCdcWriter("w", FIRST))
    assert code(old, RegisterCdcWriter("new", FIRST, WRITES)) == "source_in_use"
    assert code(applied(old, fence("w", FIRST)), RegisterCdcWriter("w", SECOND, WRITES)) == "source_in_use"
    for one, other in permutations("vw"):
        said = applied(old, RegisterCdcWriter(one, SECOND, WRITES), RegisterCdcWriter(other, SECOND, OTHERS))
        assert code(said, RegisterCdcWriter("new", FIRST, WRITES)) == "source_in_use"
    # A writer that registers without a source keeps its source.
    assert writer(applied(said, RegisterCdcWriter("w", "third"))).source == said.writers["w"].source


def test_a_fenced_writer_does_not_regain_a_source_in_use() -> None:
    taken = applied(
        founded(), RegisterCdcWriter("w", FIRST, WRITES), fence("w", FIRST), RegisterCdcWriter("v", FIRST, WRITES)
    )
    code_of, detail = refused(taken, RegisterCdcWriter("w", SECOND))
    assert code_of == "source_in_use"
    assert "v logs c.mutations" in detail
    assert writer(applied(taken, fence("v", FIRST), RegisterCdcWriter("w", SECOND))).source == WRITES


NAMES, INCARNATIONS = st.sampled_from("abc"), st.integers(0, 9).map(str)
STEPS = st.lists(
    st.builds(RegisterCdcWriter, NAMES, INCARNATIONS, st.sampled_from([WRITES, OTHERS, ""]))
    | st.builds(fence, NAMES, INCARNATIONS),
    max_size=20,
)


@given(STEPS)
def test_two_active_writers_never_share_a_source(steps: list[Command]) -> None:
    state: ClusterState = founded()
    for step in steps:
        state = fold(state, entry(state, step)).state
        at_work = [found for _, found in in_order(state.writers) if found.fenced is None and found.source]
        assert len({found.source for found in at_work}) == len(at_work)
        assert all(source_owner(state, found.name, found.source) is None for found in at_work)


def test_decisions_survive_incarnations_and_fences_of_a_source() -> None:
    said = AdvanceCdcWriter("w", FIRST, 0, 0, (), (Position(1, 7), Position(0, 3)))
    state = applied(founded(), RegisterCdcWriter("w", FIRST, WRITES), said)
    assert writer(state).decided == (Position(0, 3), Position(1, 7))
    again = applied(state, fence("w", FIRST), RegisterCdcWriter("w", SECOND, WRITES))
    assert writer(again).decided == writer(state).decided
    lower = AdvanceCdcWriter("w", SECOND, 0, 0, (), (Position(0, 1), Position(2, 1)))
    assert writer(applied(again, lower)).decided == (Position(0, 3), Position(1, 7), Position(2, 1))
    assert code(again, AdvanceCdcWriter("w", SECOND, 0, 0, (), (Position(0, -1),))) == "bad_field"
    assert writer(applied(again, RegisterCdcWriter("w", "third", OTHERS))).decided == ()


def test_decisions_about_a_source_are_bounded() -> None:
    state = applied(founded(), RegisterCdcWriter("w", FIRST, WRITES))
    many = tuple(Position(partition, 1) for partition in range(POSITIONS_MAX))
    full = applied(state, AdvanceCdcWriter("w", FIRST, 0, 0, (), many))
    one_more = AdvanceCdcWriter("w", FIRST, 0, 0, (), (Position(POSITIONS_MAX, 1),))
    assert code(full, one_more) == "too_many"
    assert writer(applied(full, AdvanceCdcWriter("w", FIRST, 0, 0, (), (Position(0, 9),)))).decided[0].offset == 9
