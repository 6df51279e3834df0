"""Pages between nodes: complete and in order, or rejected. Streams of rows from a real source over real gRPC."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlog.client.data.peers import Peers, Unreachable
from ringlog.client.participant.stream_attempts import StreamAttempts
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.commands.topology.operations import CancelOperation
from ringlog.kernel.operations.stages import WRITE_BOTH_READ_OLD
from ringlog.kernel.ring.murmur3 import token_of
from ringlog.kernel.values import replace
from ringlog.node.hosts.register_host import RegisterHost
from ringlog.node.protocol.stream import RowStreamProgress
from ringlog.node.rows.memory_rows import MemoryRows
from ringlog.node.rows.pages import Body, StreamBroken, grouped, stream_messages, verified_bodies
from ringlog.node.rows.replica import RowFetch, RowReplica
from ringlog.node.rows.store import checksum, order
from ringlog.node.servers.data_server import STREAMS_MAX, DataServer
from ringlog.node.streams import row_stream
from ringlog.node.streams.pull import Puller, cells_of
from ringlog.node.streams.row_stream import RowPull, bodies, rows_of
from ringlog.runtime.clock import SystemClock
from ringlog.wire.data import (
    BAD_CELL,
    BAD_STREAM,
    BAD_TOKEN,
    BEHIND,
    BUSY,
    KEY_BYTES_MAX,
    NOT_READY,
    TOO_LARGE,
    VALUE_BYTES_MAX,
    WRONG_NODE,
    Cells,
    Key,
    RegisterCell,
    Rows,
    RowVersion,
    StreamPage,
    key_of,
    pack,
)
from ringlog.wire.records import encode_mutation
from tests.kernel.entries import applied
from tests.node.streams import source_rows
from tests.node.world import APPENDED, begin_join, cluster, name_of, step, write
from tests.refusals import raises_code

FETCH = RowFetch("join-1", 7, "s", "simple:2", ((0, 0),), ((0, 3),))


def version(partition_key: bytes, table: str = "a.t", **changes: Any) -> RowVersion:
    """Return a row at the token of its key."""
    return RowVersion(table, token_of(partition_key), partition_key, **({"clustering_key": ()} | changes))


versions = st.builds(
    version,
    st.binary(max_size=4),
    table=st.sampled_from(["a.t", "a.u"]),
    clustering_key=st.lists(st.none() | st.binary(max_size=2), max_size=2).map(tuple),
    timestamp=st.integers(-(2**63), 2**63 - 1),
    value=st.binary(max_size=9),
)


def listed(found: list[RowVersion]) -> tuple[RowVersion, ...]:
    store = MemoryRows()
    for version in found:
        store.add(version)
    return tuple(store.versions(((0, 0),)))


def rows_page(*rows: RowVersion) -> Rows:
    """Return a page of rows with an id for each table."""
    return Rows(rows, tuple((table, f"id of {table}") for table in sorted({one.table for one in rows})))


def pages_of(rows: Sequence[RowVersion], page_bytes: int) -> Callable[[RowVersion | None], Rows]:
    """Return a source of pages: the rows after a position."""

    def page(after: RowVersion | None) -> Rows:
        wanted = (one for one in rows if after is None or order(one) > order(after))
        sizes = ((one, len(one.partition_key) + len(one.value)) for one in wanted)
        return rows_page(*next(grouped(sizes, page_bytes), ()))

    return page


@given(st.lists(st.binary(max_size=6), max_size=8), st.integers(1, 20))
def test_groups_hold_everything_in_order(items: list[bytes], page_bytes: int) -> None:
    groups = list(grouped(((item, len(item)) for item in items), page_bytes))
    assert [item for group in groups for item in group] == items
    assert all(group and sum(map(len, group[:-1])) < page_bytes for group in groups)


@given(st.lists(versions, max_size=20), st.integers(1, 60), st.data())
def test_rows_arrive_complete_and_continue_after_each_row(
    found: list[RowVersion], page_bytes: int, data: st.DataObject
) -> None:
    rows = listed(found)
    after = data.draw(st.none() | st.sampled_from(rows)) if rows else None
    got: list[RowVersion] = []
    for body in verified_bodies(stream_messages("n", 1, bodies(pages_of(rows, page_bytes), after)), "n"):
        got += rows_of(body, got[-1] if got else after, FETCH).rows
    assert got == [one for one in rows if after is None or order(one) > order(after)]


@given(st.lists(versions, min_size=1, max_size=20), st.data())
def test_damaged_bytes_are_never_accepted_as_a_stream(found: list[RowVersion], data: st.DataObject) -> None:
    pages = list(stream_messages("n", 1, bodies(pages_of(listed(found), 40), None)))
    at = data.draw(st.integers(0, len(pages) - 1))
    kind = data.draw(st.sampled_from(["lost", "twice", "changed", "count"]))
    if kind == "lost":
        damaged = pages[:at] + pages[at + 1 :]
    elif kind == "twice":
        at = min(at, len(pages) - 2)
        damaged = [*pages[: at + 1], *pages[at:]]
    elif kind == "count":
        damaged = [*pages[:at], replace(pages[at], count=pages[at].count + 1), *pages[at + 1 :]]
    else:
        page = pages[at]
        body = page.body[:-1] + bytes((page.body[-1] ^ 1,)) if page.body else b"x"
        damaged = [*pages[:at], replace(page, body=body, crc=page.crc + page.is_end), *pages[at + 1 :]]

    def taken() -> list[RowVersion]:
        got: list[RowVersion] = []
        for one in verified_bodies(damaged, "n"):
            got += rows_of(one, got[-1] if got else None, FETCH).rows
        return got

    with pytest.raises(StreamBroken):
        taken()


def test_a_refusal_has_a_code_and_a_message() -> None:
    with raises_code(StreamBroken, NOT_READY, match="not_ready at epoch 4: writes are missing"):
        list(verified_bodies([StreamPage("n", 4, NOT_READY, "writes are missing")], "n"))


def test_pages_of_another_node_are_refused() -> None:
    pages = list(stream_messages("n", 1, bodies(pages_of((version(b"k", timestamp=1, value=b"v"),), 40), None)))
    assert len(list(verified_bodies(pages, "n"))) == 1
    with raises_code(StreamBroken, WRONG_NODE, match="n answers in place of m"):
        list(verified_bodies(pages, "m"))


def cell_body(*pairs: tuple[Key, RegisterCell], count: int | None = None) -> Body:
    made = tuple((space, 3) for space in sorted({key.keyspace for key, _ in pairs}))
    return pack(Cells(pairs, made)), len(pairs) if count is None else count


ONE, TWO = sorted((key_of("ks", b"a"), key_of("ks", b"b")))
CELL = RegisterCell(1, b"v")


@pytest.mark.parametrize(
    ("body", "after", "says"),
    [
        (cell_body(), None, "has 0"),
        (cell_body((ONE, CELL), count=2), None, "has 1"),
        (cell_body((TWO, CELL), (ONE, CELL)), None, "ascend"),
        (cell_body((ONE, CELL), (ONE, CELL)), None, "ascend"),
        (cell_body((ONE, CELL)), ONE, "ascend"),
        (cell_body((replace(ONE, token=ONE.token + 1), CELL)), None, BAD_TOKEN),
        (cell_body((key_of("ks", b"a" * (KEY_BYTES_MAX + 1)), CELL)), None, TOO_LARGE),
        (cell_body((ONE, RegisterCell(1, b"v" * (VALUE_BYTES_MAX + 1)))), None, TOO_LARGE),
        (cell_body((ONE, RegisterCell(1, b"v", deleted=True))), None, BAD_CELL),
        ((pack(Cells(((ONE, CELL),))), 1), None, "were made"),
    ],
)
def test_cells_out_of_order_or_place_are_refused(body: Body, after: Key | None, says: str) -> None:
    assert cells_of(cell_body((ONE, CELL), (TWO, CELL)), None).cells == ((ONE, CELL), (TWO, CELL))
    with pytest.raises(StreamBroken, match=says):
        cells_of(body, after)


def test_rows_of_other_ranges_are_refused() -> None:
    row = version(b"k", timestamp=1, value=b"v")
    assert rows_of((pack(rows_page(row)), 1), None, FETCH).rows == (row,)
    with pytest.raises(StreamBroken, match="ids of the tables"):
        rows_of((pack(Rows((row,))), 1), None, FETCH)
    with pytest.raises(StreamBroken, match="other ranges"):
        rows_of((pack(rows_page(row)), 1), None, replace(FETCH, ranges=((row.token, row.token + 1),)))


def test_rows_with_a_wrong_token_are_rejected() -> None:
    row = replace(version(b"k", timestamp=1, value=b"v"), token=12_345)
    with pytest.raises(StreamBroken, match="token"):
        rows_of((pack(Rows((row,))), 1), None, FETCH)


# ------------------------------------------------------------------------------------------------------ a source

STATE = cluster((-(2**62),), (0,), (2**62,))


class _Gaining(RowReplica):
    """A receiver that accepts all pages while the stream is wanted."""

    def __init__(self, node: str) -> None:
        super().__init__(node)
        self.is_wanted = True
        self.got: list[RowVersion] = []
        self.sums: list[tuple[int, str]] = []

    def take_in(self, fetch: RowFetch, page: Rows) -> bool:
        self.got += page.rows if self.is_wanted else ()
        return self.is_wanted

    def complete(self, fetch: RowFetch, rows: int, digest: str) -> bool:
        self.sums.append((rows, digest))
        return self.is_wanted


def once(pull: RowPull) -> None:
    """Make one call and store its pages."""
    for page in pull.pages():
        assert pull.keep(page)


class Source:
    """Node 1 with 40 rows in a cluster that node 4 joins; pages are small."""

    def __init__(self, folder: Path) -> None:
        state, self.operation = begin_join(STATE, 4, (-(2**62) - 2**61, 2**61, -(2**61)))
        while state.operations[self.operation].stage != WRITE_BOTH_READ_OLD:
            state = step(state, self.operation)
        self.state = state
        self.row_replica = RowReplica(name_of(1))
        self.row_replica.adopt(STATE)
        self.row_replica.positions.update({0: 4})
        self.row_replica.caught_up = True
        for number in range(40):
            mutation = write(f"c{number}", 1)
            self.row_replica.admit(mutation, APPENDED, encode_mutation(mutation))
        self.host = RegisterHost(name_of(1), folder)
        self.server = DataServer(self.host, self.row_replica, lambda: STATE.cluster_id, "127.0.0.1", page_bytes=100)
        self.server.start()
        self.gains = _Gaining(name_of(4))
        self.peers = Peers(lambda _: f"127.0.0.1:{self.server.port}")
        ranges = tuple((s.start, s.end) for s in self.operation_sources())
        self.fetch = RowFetch(self.operation, 7, name_of(1), "simple:2", ranges, ((0, 4),))

    def operation_sources(self) -> list[object]:
        return [s for s in self.state.operations[self.operation].plan.sources if s.source == name_of(1)]

    def pull(self, fetch: RowFetch | None = None) -> RowPull:
        self.gained = RowStreamProgress(self.gains, fetch or self.fetch)
        return RowPull(self.peers, name_of(4), STATE, self.gained)

    def pulled(self, pull: RowPull | None = None) -> tuple[RowVersion, ...]:
        """Return the rows of a stream."""
        pull = pull or self.pull()
        once(pull)
        assert self.gained.rows == len(self.gains.got)
        assert pull.end()
        got = tuple(self.gains.got)
        assert self.gains.sums == [(len(got), checksum(got))]
        return got

    def expected(self) -> tuple[RowVersion, ...]:
        return source_rows(self.row_replica, self.fetch).rows

    def close(self) -> None:
        self.server.stop(0.1)
        self.peers.close()
        self.host.close()


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Source]:
    with closing(Source(tmp_path)) as made:
        yield made


def test_a_source_sends_rows_once_it_is_ready(source: Source) -> None:
    def refused(fetch: RowFetch) -> str:
        with pytest.raises(StreamBroken) as broken:
            once(source.pull(fetch))
        return broken.value.code

    assert refused(source.fetch) == NOT_READY
    source.row_replica.adopt(source.state)
    assert refused(replace(source.fetch, positions=((0, 5),))) == NOT_READY
    assert refused(replace(source.fetch, ranges=((0, 0),))) == BAD_STREAM
    ahead = applied(source.state, Noop())
    with raises_code(StreamBroken, BEHIND):
        once(RowPull(source.peers, name_of(4), ahead, source.gained))
    assert refused(replace(source.fetch, source=name_of(2))) == WRONG_NODE
    found = source.pulled()
    assert found == source.expected()
    assert found


def test_a_stopping_node_requests_no_rows(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node waits for the thread of each stream before it stops the puller."""
    stopping, stream, calls = threading.Event(), source.peers.stream, list[object]()

    def stopped_meanwhile(*arguments: object) -> Iterator[bytes]:
        calls.append(arguments)
        assert not stopping.is_set(), "a stopping node sends no request"
        if len(calls) == 2:
            stopping.set()
        yield from stream(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(source.peers, "stream", stopped_meanwhile)
    puller = Puller(source.host, source.peers, StreamAttempts(), SystemClock(), stopping)
    puller.run_stream(source.fetch, source.pull(), lambda: True, lambda: source.state, "n1")
    assert stopping.is_set()


def test_a_stream_continues_after_the_received_rows(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    source.row_replica.adopt(source.state)
    pull = source.pull()
    stream = source.peers.stream

    def cut(*arguments: object) -> Iterator[bytes]:
        messages = stream(*arguments)  # type: ignore[arg-type]
        yield next(messages)
        yield next(messages)

    monkeypatch.setattr(source.peers, "stream", cut)
    with pytest.raises(StreamBroken, match="without its last page"):
        once(pull)
    with pytest.raises(StreamBroken, match="without its last page"):
        once(pull)
    monkeypatch.setattr(source.peers, "stream", stream)
    assert source.pulled(pull) == source.expected()


def test_an_unwanted_stream_ends(source: Source) -> None:
    source.row_replica.adopt(source.state)
    source.gains.is_wanted = False
    pull = source.pull()
    (page, *_) = pull.pages()
    assert 0 < len(page) < len(source.expected())
    assert not pull.keep(page)
    assert (source.gained.rows, pull.end()) == (0, False)


def test_a_source_reports_that_it_may_not_continue(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    source.row_replica.adopt(source.state)
    gate = threading.Event()

    def held(page: Callable[[RowVersion | None], Rows], after: RowVersion | None) -> Iterator[Body]:
        def next_page(last: RowVersion | None) -> Rows:
            assert last is None or gate.wait(60)  # The source sends pages as far as the transport accepts them.
            return page(last)

        return bodies(next_page, after)

    monkeypatch.setattr(row_stream, "bodies", held)
    pages = source.pull().messages()
    next(pages)
    source.row_replica.adopt(applied(source.state, CancelOperation(source.operation, "no")))
    gate.set()
    assert [page.refused for page in pages if page.refused] == [NOT_READY]


def test_too_many_concurrent_streams_are_rejected(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    source.row_replica.adopt(source.state)
    begun, gate = threading.Semaphore(0), threading.Event()

    def held(*_: object) -> Iterator[Body]:
        begun.release()
        assert gate.wait(60)
        return iter(())

    monkeypatch.setattr(row_stream, "bodies", held)
    streams = [source.pull().messages() for _ in range(STREAMS_MAX)]
    asking = [threading.Thread(target=list, args=(pages,)) for pages in streams]
    for thread in asking:
        thread.start()
    for _ in streams:
        assert begun.acquire(timeout=60)
    with raises_code(StreamBroken, BUSY):
        once(source.pull())
    gate.set()
    for thread in asking:
        thread.join()
    assert source.pulled() == ()


def test_an_unreachable_source_is_reported() -> None:
    def down(_: str) -> str:
        raise Unreachable("it is down")

    away = Peers(down)
    with pytest.raises(Unreachable):
        once(RowPull(away, name_of(4), STATE, RowStreamProgress(RowReplica(name_of(4)), FETCH)))
    away.close()
