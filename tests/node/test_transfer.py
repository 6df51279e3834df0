"""Rows on their way between nodes: whole, or not at all."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlog.node.holder import Fetch, Snapshot
from ringlog.node.store import RowStore, Version, checksum
from ringlog.node.transfer import CHECKSUM_HEADER, ROWS_HEADER, SourceNotReady, TransferError, fetch_rows, pack, unpack

FETCH = Fetch("join-1", 7, "s", "simple:2", ((-100, 100),), ((0, 3),))
versions = st.builds(
    Version,
    table=st.sampled_from(["a.t", "a.u"]),
    token=st.integers(-99, 100),
    partition_key=st.binary(max_size=4),
    clustering_key=st.lists(st.none() | st.binary(max_size=2), max_size=2).map(tuple),
    timestamp=st.integers(-(2**63), 2**63 - 1),
    value=st.binary(max_size=9),
)


def snapshot_of(found: list[Version]) -> Snapshot:
    store = RowStore()
    for version in found:
        store.add(version)
    listed = tuple(store.versions(((0, 0),)))
    return Snapshot(listed, checksum(listed))


@given(st.lists(versions, max_size=20))
def test_round_trip(found: list[Version]) -> None:
    snapshot = snapshot_of(found)
    body, headers = pack(snapshot)
    assert unpack(body, int(headers[ROWS_HEADER]), headers[CHECKSUM_HEADER]) == snapshot


@given(st.lists(versions, min_size=1, max_size=20), st.data())
def test_damage_never_changes_rows(found: list[Version], data: st.DataObject) -> None:
    snapshot = snapshot_of(found)
    body, headers = pack(snapshot)
    at = data.draw(st.integers(0, len(body) - 1))
    flipped = body[:at] + bytes((body[at] ^ 1 << data.draw(st.integers(0, 7)),)) + body[at + 1 :]
    for damaged in (flipped, body[:at]):
        try:
            arrived = unpack(damaged, int(headers[ROWS_HEADER]), headers[CHECKSUM_HEADER])
        except TransferError:
            continue
        assert arrived == snapshot, "what was changed says nothing about rows, e.g. a name in the file's schema"


def answering(status: int, body: bytes, headers: dict[str, str]) -> httpx.Client:
    def handle(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/stream"
        return httpx.Response(status, content=body, headers=headers)

    return httpx.Client(transport=httpx.MockTransport(handle))


SNAPSHOT = snapshot_of([Version("a.t", 5, b"k", (b"c", None), 1, b"v"), Version("a.t", 9, b"l", (), 2, b"w")])
BODY, HEADERS = pack(SNAPSHOT)


def test_what_arrived_whole_is_given() -> None:
    assert fetch_rows(answering(200, BODY, HEADERS), "s:1", FETCH) == SNAPSHOT


@pytest.mark.parametrize(
    ("status", "change", "error", "says"),
    [
        (200, lambda h: h | {ROWS_HEADER: "3"}, TransferError, "3 rows announced, 2 arrived"),
        (200, lambda h: h | {CHECKSUM_HEADER: "00"}, TransferError, "checksum 00 announced"),
        (200, lambda h: {CHECKSUM_HEADER: h[CHECKSUM_HEADER]}, TransferError, "how many"),
        (200, lambda h: {ROWS_HEADER: "2"}, TransferError, "checksum"),
        (200, lambda h: h | {ROWS_HEADER: "-2"}, TransferError, "how many"),
        (503, lambda h: h, SourceNotReady, "s:1"),
        (421, lambda h: h, TransferError, "421"),
        (500, lambda h: {}, TransferError, "500"),
    ],
)
def test_anything_else_is_refused(
    status: int, change: Callable[[dict[str, str]], dict[str, str]], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        fetch_rows(answering(status, BODY, change(HEADERS)), "s:1", FETCH)


def test_rows_of_other_ranges_are_refused() -> None:
    body, headers = pack(snapshot_of([Version("a.t", 101, b"k", (), 1, b"v")]))
    with pytest.raises(TransferError, match="other ranges"):
        fetch_rows(answering(200, body, headers), "s:1", FETCH)


def test_no_answer_is_an_error_that_names_the_address() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(TransferError, match="s:1 did not answer"):
        fetch_rows(httpx.Client(transport=httpx.MockTransport(refuse)), "s:1", FETCH)
