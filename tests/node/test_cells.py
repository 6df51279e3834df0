"""The cells of a replica against a plain dictionary: wrapping ranges, deletes, cuts, paged lists that continue after
breaks.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlog.kernel.ring.ranges import Range, in_range
from ringlog.kernel.values import TOKEN_MAX
from ringlog.node.registers import btree as tree
from ringlog.node.registers.btree import Inner, Leaf, Node
from ringlog.node.registers.cells import (
    CellMap,
    CellSnapshot,
    are_wellformed,
    bytes_of,
    bytes_of_cell,
    cell_of,
    key_of,
    newest_of,
)
from ringlog.node.registers.packed import decode_record, encode_parts, encode_record
from ringlog.node.registers.spans import LOWEST, NO_SPANS, WHOLE, Spans
from ringlog.wire.data import JournalRecord, Key, RegisterCell, newest, pack, rank
from ringlog.wire.errors import WireError

KEYSPACES = ("a", "ab", "b", "\u00e9")
TOKENS = st.sampled_from((LOWEST, LOWEST + 1, -3, -2, -1, 0, 1, 2, 3, TOKEN_MAX - 1, TOKEN_MAX))
NAMES = st.binary(max_size=2) | st.just(b"\0" * 9)
KEYS = st.builds(Key, st.sampled_from(KEYSPACES), TOKENS, NAMES)
CELLS = st.builds(RegisterCell, st.sampled_from((-(2**63), -1, 0, 1, 2**63 - 1)), st.binary(max_size=2), st.booleans())
RANGES = st.lists(st.tuples(TOKENS, TOKENS), max_size=3)
PARTS = st.dictionaries(st.sampled_from(KEYSPACES), RANGES, max_size=3)
WRITES = st.dictionaries(KEYS, CELLS, max_size=8)
STEPS = st.lists(WRITES | st.lists(KEYS, max_size=2) | PARTS.map(Spans), max_size=12)


@pytest.fixture(autouse=True)
def small_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make trees deep with a few keys."""
    monkeypatch.setattr(tree, "LEAF_MAX", 4)
    monkeypatch.setattr(tree, "NODE_MAX", 4)


def plain_parts(parts: dict[str, list[Range]], key: Key) -> bool:
    """Return whether a key is in the ranges of its keyspace, by the ring's own rule."""
    return any(in_range(key.token, start, end) for start, end in parts.get(key.keyspace, ()))


def ordered(held: dict[Key, RegisterCell]) -> list[tuple[Key, RegisterCell]]:
    return sorted(held.items(), key=lambda one: (one[0].keyspace, one[0].token, one[0].name))


def check(node: Node, low: bytes = b"", high: bytes | None = None, is_root: bool = True) -> int:
    """Check the invariants of a tree and return its depth."""
    if isinstance(node, Leaf):
        assert node.count == len(node.keys) == len(node.values)
        assert node.count or is_root
        assert node.count <= tree.LEAF_MAX
        assert list(node.keys) == sorted(set(node.keys))
        assert all(low <= key and (high is None or key < high) for key in node.keys)
        return 0
    assert isinstance(node, Inner)
    assert 0 < len(node.children) <= tree.NODE_MAX
    assert len(node.children) > 1 or not is_root
    assert node.count == sum(child.count for child in node.children)
    bounds = [low, *node.lows[1:], high]
    pairs = zip(node.children, bounds[:-1], bounds[1:], strict=True)
    (depth,) = {check(child, first or b"", last, is_root=False) for child, first, last in pairs}
    return depth + 1


@settings(max_examples=120)
@given(STEPS)
def test_random_steps_match_a_dictionary(steps: list[dict[Key, RegisterCell] | list[Key] | Spans]) -> None:
    cells, held = CellMap(), dict[Key, RegisterCell]()
    before: list[tuple[CellMap, dict[Key, RegisterCell]]] = []
    for step in steps:
        before.append((cells, dict(held)))
        if isinstance(step, dict):
            many = cells.with_many({bytes_of(key): bytes_of_cell(cell) for key, cell in step.items()})
            cells = cells.with_newest(step.items())
            assert many == cells
            check(many.root)
            held |= {key: newest(held.get(key), cell) for key, cell in step.items()}
        elif isinstance(step, Spans):
            assert all(cells.has_any(span) == any(_lies_in(key, span) for key in held) for span in step)
            cells = cells.without(step)
            held = {key: cell for key, cell in held.items() if key not in step}
        else:
            cells = cells.without_keys(step)
            held = {key: cell for key, cell in held.items() if key not in step}
        check(cells.root)
        assert list(cells.items()) == ordered(held)
        assert len(cells) == len(held)
        assert cells.keyspaces() == tuple(sorted({key.keyspace for key in held}))
        assert all(cells.get(key) == cell and key in cells for key, cell in held.items())
    assert all(list(then.items()) == ordered(was) for then, was in before), "the old version is unchanged"


def _lies_in(key: Key, span: tuple[str, int, int]) -> bool:
    return key.keyspace == span[0] and span[1] <= key.token <= span[2]


@given(PARTS, KEYS)
def test_spans_hold_the_tokens_of_their_ranges(parts: dict[str, list[Range]], key: Key) -> None:
    spans = Spans(parts)
    assert (key in spans) == plain_parts(parts, key)
    found = list(spans)
    assert found == sorted(found)
    for (one, _, last), (other, first, _) in pairwise(found):
        assert one != other or last + 1 < first, "there is a gap between any two spans"
    assert bool(spans) == bool(found)
    assert key in Spans({key.keyspace: [WHOLE]})
    assert key not in NO_SPANS


@settings(max_examples=80)
@given(WRITES, WRITES, PARTS, st.lists(st.integers(1, 4), min_size=1, max_size=8))
def test_a_paged_list_continues_after_any_break(
    first: dict[Key, RegisterCell], later: dict[Key, RegisterCell], parts: dict[str, list[Range]], pages: list[int]
) -> None:
    cells, spans = CellMap().with_newest(first.items()), Spans(parts)
    got: dict[Key, RegisterCell] = {}
    last: Key | None = None
    for number in range(40):
        source: Iterator[tuple[Key, RegisterCell]] = CellSnapshot(cells, spans, {}).after(last)
        page = [one for one, _ in zip(source, range(pages[number % len(pages)]), strict=False)]
        if not page:
            break
        assert last is None or page[0][0] > last
        got |= page
        last = page[-1][0]
        cells = cells.with_newest(later.items())  # The source gains cells on each call.
    wanted = {key: cell for key, cell in first.items() if plain_parts(parts, key)}
    assert wanted.keys() <= got.keys()
    assert all(plain_parts(parts, key) and key in cells for key in got)
    whole = CellSnapshot(cells, spans, {})
    assert all(key in whole for key in got)


@given(st.lists(KEYS, min_size=2, max_size=6), st.lists(CELLS, min_size=2, max_size=2))
def test_encoded_keys_keep_their_order_and_decode_back(keys: list[Key], cells: list[RegisterCell]) -> None:
    assert [key_of(data) for data in sorted(map(bytes_of, keys))] == sorted(keys)
    one, other = (bytes_of_cell(cell) for cell in cells)
    assert (cell_of(one), cell_of(other)) == tuple(cells)
    assert rank(cell_of(newest_of(one, other))) == max(map(rank, cells))


@given(WRITES, st.data())
def test_packed_cells_decode_back_and_other_bytes_are_rejected(
    written: dict[Key, RegisterCell], data: st.DataObject
) -> None:
    record = JournalRecord(epoch=3, cells=tuple(written.items()), gone=(("a", -5, 7),), ended=("join-1",))
    payload = encode_record(record)
    found, keys, cells = decode_record(payload)
    assert (found.epoch, found.gone, found.ended, found.cells) == (3, record.gone, record.ended, ())
    assert {key_of(key): cell_of(cell) for key, cell in zip(keys, cells, strict=True)} == written
    assert len(encode_record(JournalRecord(cells=record.cells))) < len(payload), "plain cells have no record"
    cut = data.draw(st.integers(0, len(payload) - 1))
    for damaged in (payload[:cut], payload + b"x", pack(record)):
        with pytest.raises(WireError):
            decode_record(damaged)


@pytest.mark.parametrize(
    ("key", "cell"),
    [(b"no zero byte at all", b"123456789"), (b"\xff\0" + bytes(8), b"123456789"), (b"ks\0" + bytes(8), b"12345678")],
)
def test_invalid_trees_are_rejected(key: bytes, cell: bytes) -> None:
    assert not are_wellformed([key], [cell])
    with pytest.raises(WireError, match="not_decodable"):
        decode_record(encode_parts(JournalRecord(), [key], [cell]))


def test_a_cut_costs_its_edges_and_shares_the_rest() -> None:
    pairs = [(b"%05d" % number, b"v") for number in range(3_000)]
    root = tree.built([([key for key, _ in pairs], [value for _, value in pairs])])
    depth = check(root)
    left = tree.cut(root, b"01000", b"02000")
    check(left)
    assert [key for leaf in tree.leaves(left) for key in leaf.keys] == [k for k, _ in pairs if not b"01" <= k < b"02"]
    shared = {id(leaf) for leaf in tree.leaves(root)} & {id(leaf) for leaf in tree.leaves(left)}
    assert len(list(tree.leaves(left))) - len(shared) <= 2
    assert tree.cut(root, b"03000", b"09") is root
    assert depth > 3
