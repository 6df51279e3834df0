"""Log entries from peers: a node accepts whole pages of one chain, and its own log confirms or refutes them."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ringlog.client.data.peers import Peers, Unreachable
from ringlog.client.participant.retry import Stopped
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.commands.cluster.service import AddServiceMember
from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import Folded, OutcomeKind
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, replace
from ringlog.log.errors import LogUnavailable
from ringlog.log.folding import ReadAhead, Start
from ringlog.log.memory import MemoryLog
from ringlog.log.replicas.recent import RecentEntries
from ringlog.log.replicas.replica import LogReplica
from ringlog.node.hosts.register_host import RegisterHost
from ringlog.node.log import entries
from ringlog.node.log.entries import PEERS_AT_ONCE, EntryServer, LogOnDisk
from ringlog.node.log.log_copy import COPY
from ringlog.node.log.member_copy import open_copy
from ringlog.node.log.peer_requests import ClaimedEpochs, PeerRequests
from ringlog.node.protocol import peers as protocol
from ringlog.node.protocol.mutation_loop import Sleep
from ringlog.node.protocol.peer_log_claims import PeerLogClaims
from ringlog.node.protocol.peers import AskLog, AskPeer, AwaitBehind, PeerAnswered, PeerRefuted, ask_peers, order_of
from ringlog.node.rows.replica import RowReplica
from ringlog.node.servers.data_server import DataServer
from ringlog.protocol.effects import run_steps
from ringlog.runtime.draw import SeededDraw, SystemDraw
from ringlog.wire.data import (
    BAD_ENTRIES,
    BAD_EPOCH,
    BEHIND,
    BUSY,
    ENTRIES_BYTES_MAX,
    FOREIGN_CLUSTER,
    GAP,
    OTHER_HISTORY,
    SERVICE,
    SNAPSHOT_BYTES_MAX,
    TOO_LARGE,
    WRONG_NODE,
    EntriesReply,
    EntriesRequest,
    pack,
    unpack,
)
from ringlog.wire.entries import decode_entry
from ringlog.wire.records import decode_snapshot_record, encode_snapshot_record
from ringlog_sim.devices.world import Chance
from ringlog_sim.stories.peer_logs import LIES, false_answer
from tests.kernel.commands.test_service import ONE, THREE, TWO, of
from tests.kernel.entries import applied, uuid
from tests.log.test_snapshots import Cluster
from tests.node.data_world import until
from tests.node.test_log_copy import confirmed, filled

PAGE = 600


class History:
    """A log, its states, and the part that a node has."""

    def __init__(self, cluster: Cluster, bytes_max: int = 1_000_000) -> None:
        self.states = [ClusterState()]
        self.data = [b""]
        self.recent = RecentEntries(bytes_max)
        for record in cluster.log.read(0, 0, 100_000)[0]:
            made = fold_on(self.states[-1], record.data)
            if made.outcome.kind is OutcomeKind.APPLIED:
                self.states.append(made.state)
                self.data.append(record.data)
                self.recent.add(made.state.epoch, record.data)

    def at(self, epoch: Epoch) -> bytes | None:
        return self.data[epoch]

    def side(self, node: str = TWO, copy: LogOnDisk | None = None, page_bytes: int = PAGE) -> EntryServer:
        return EntryServer(node, lambda: self.states[-1], lambda: self.recent, lambda: copy, page_bytes)


def fold_on(state: ClusterState, data: bytes) -> Folded:
    return fold(state, decode_entry(data))


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.live(random.Random(3), 80)
    return made


@pytest.fixture
def history(cluster: Cluster) -> History:
    return History(cluster)


def asked(
    claims: PeerLogClaims,
    own: ClusterState,
    side: EntryServer,
    change: Callable[[EntriesReply], EntriesReply] = lambda one: one,
) -> tuple[str, EntriesReply]:
    """Return one page of a peer, changed in transit."""
    reply = change(side.answer(claims.request(TWO, own)))
    return claims.take(TWO, reply), reply


def learned(claims: PeerLogClaims, own: ClusterState, side: EntryServer) -> int:
    """Fetch all pages of the peer and return their number."""
    pages, code = 0, ""
    while not code and claims.newest(own).epoch < side.answer(claims.request(TWO, own)).epoch:
        code, _ = asked(claims, own, side)
        pages += 1
    assert code == ""
    return pages


# ---------------------------------------------------------------------------------------------------- answers of a peer


def test_a_lagging_node_reads_the_log_of_a_peer_in_pages(history: History) -> None:
    own, newest = history.states[3], history.states[-1]
    claims = PeerLogClaims(fold_on)
    assert learned(claims, own, history.side()) > 3
    assert claims.newest_epoch == newest.epoch
    assert digest(claims.newest(own)) == digest(newest)
    assert asked(claims, own, history.side()) == ("", EntriesReply(TWO, newest.epoch, "", newest.state_id))


def test_a_peer_shows_only_the_entries_that_it_has_folded(history: History) -> None:
    own, side = history.states[3], history.side(copy=Ahead(history.data))
    del history.states[10:]
    claims = PeerLogClaims(fold_on)
    assert asked(claims, own, side)[0] == ""
    assert claims.newest_epoch == 9


class Ahead:
    """A copy that has all entries."""

    base = Start()

    def __init__(self, data: list[bytes]) -> None:
        self._data = data

    def after(self, epoch: Epoch, page_bytes: int) -> tuple[bytes, ...] | None:
        return tuple(self._data[epoch + 1 :])


def test_a_peer_with_gaps_reports_them(cluster: Cluster) -> None:
    few = History(cluster, 2_000)
    before, newest = few.recent.before, few.states[-1]
    assert 3 < before < newest.epoch - 1
    for epoch, code in ((before - 1, GAP), (before, ""), (newest.epoch, "")):
        claims = PeerLogClaims(fold_on)
        assert asked(claims, few.states[epoch], few.side())[0] == code, epoch
    assert few.recent.after(newest.epoch + 1, PAGE) is None
    assert (few.recent.at(before), few.recent.at(newest.epoch)) == (None, few.data[-1])


def test_unanswerable_requests_are_rejected_with_a_code(history: History) -> None:
    state, side = history.states[5], history.side()
    whose = state.cluster_id, TWO
    for request, code in (
        (EntriesRequest(*whose, -1, state.state_id), BAD_EPOCH),
        (EntriesRequest(*whose, 5, state.state_id, -1), BAD_EPOCH),
        (EntriesRequest(*whose, 5, state.state_id, 7, -3), BAD_EPOCH),
        (EntriesRequest(*whose, 10**6, state.state_id), BEHIND),
        (EntriesRequest(*whose, 5, uuid(99)), OTHER_HISTORY),
    ):
        assert side.answer(request).refused == code
    for _ in range(PEERS_AT_ONCE):
        assert side._slots.acquire(blocking=False)
    assert side.answer(EntriesRequest(*whose, 5, state.state_id)).refused == BUSY


@pytest.mark.parametrize("chunk_bytes", [700, 1_000_000])
def test_a_member_sends_a_snapshot_if_its_copy_starts_later(
    tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    monkeypatch.setattr(entries, "encode_snapshot", lambda *what: _cut(*what, chunk_bytes=chunk_bytes))
    with closing(open_copy(tmp_path / COPY, cluster.log, cluster.start_finder())) as copy:
        filled(copy, cluster)
        every = History(cluster)
        assert [copy.after(epoch, 1) for epoch in range(len(every.data) - 1)] == [(one,) for one in every.data[1:]]
        confirmed(cluster)
        cluster.apply(*[Noop()] * 5)
        filled(copy, cluster)  # From here on, the copy starts with the snapshot.
        cluster.apply(Noop())
        filled(copy, cluster)
        late = History(cluster, 0)
        base = copy.base.state.epoch
        assert copy.after(base - 1, PAGE) is None
        assert copy.after(base, 10**6) == tuple(late.data[base + 1 :])
        own, claims = late.states[3], PeerLogClaims(fold_on)
        pages = learned(claims, own, late.side(copy=copy))
        assert (pages > 3) is (chunk_bytes < 1_000)
        assert digest(claims.newest(own)) == digest(cluster.state)
        assert claims.compare(cluster.state, late.at) == ""
        assert claims.newest_epoch == 0
    assert copy.after(base, PAGE) is None, "the copy is closed"


_cut = entries.encode_snapshot


def test_an_invalid_snapshot_is_rejected(tmp_path: Path, cluster: Cluster) -> None:
    with closing(open_copy(tmp_path / COPY, cluster.log, cluster.start_finder())) as copy:
        filled(copy, cluster)
        head = confirmed(cluster)
        filled(copy, cluster)
        side, own = History(cluster, 0).side(copy=copy), History(cluster).states[2]
        (first, chunk) = side.answer(EntriesRequest(own.cluster_id, TWO, 2, own.state_id)).snapshot
        snapshot: Any = decode_snapshot_record(first)
        for changes, code in (
            ({"digest": "00"}, BAD_ENTRIES),
            ({"cluster_id": uuid(77)}, FOREIGN_CLUSTER),
            ({"epoch": 1}, BAD_ENTRIES),
            ({"epoch": head.epoch + 1}, BAD_ENTRIES),
            ({"parts": (replace(snapshot.parts[0], size=SNAPSHOT_BYTES_MAX + 1),)}, TOO_LARGE),
            ({"parts": snapshot.parts[:1]}, BAD_ENTRIES),
        ):
            forged = encode_snapshot_record(replace(snapshot, **changes)), chunk
            assert asked(PeerLogClaims(fold_on), own, side, lambda one, f=forged: replace(one, snapshot=f))[0] == code
        for forged in ((first,), (first, first), (b"", chunk), (first, chunk[:-1] + bytes((chunk[-1] ^ 1,)))):
            claims = PeerLogClaims(fold_on)
            assert asked(claims, own, side, lambda one, f=forged: replace(one, snapshot=f))[0] == BAD_ENTRIES
            assert claims.newest_epoch == 0
        other = replace(own, state_id=uuid(5))
        claims = PeerLogClaims(fold_on)
        claims.request(TWO, other)
        assert claims.take(TWO, EntriesReply(TWO, head.epoch, snapshot=(first, chunk))) == OTHER_HISTORY


# ------------------------------------------------------------------------------------------------------- accepted pages


@pytest.mark.parametrize("lie", [one for one in LIES if one not in ("copied", "ahead")])
def test_a_page_outside_the_chain_is_rejected_whole(history: History, lie: str) -> None:
    own, claims = history.states[3], PeerLogClaims(fold_on)
    honest = history.side().answer(claims.request(TWO, own))
    for seed in range(20):
        code, reply = asked(claims, own, history.side(), lambda one, s=seed: false_answer(one, lie, own, Chance(s, "")))
        last_was_cut = lie == "gap" and reply.entries == honest.entries[:-1]
        assert code == {"foreign": FOREIGN_CLUSTER}.get(lie, "" if last_was_cut else BAD_ENTRIES)
        assert bool(claims.newest_epoch) is last_was_cut
        claims.forget()


def test_other_invalid_answers_are_rejected(history: History) -> None:
    own, claims, side = history.states[3], PeerLogClaims(fold_on), history.side()
    large = bytes(ENTRIES_BYTES_MAX)
    for change, code in (
        (lambda one: replace(one, node=THREE), WRONG_NODE),
        (lambda one: replace(one, refused=GAP), GAP),
        (lambda one: replace(one, entries=(*one.entries, large)), TOO_LARGE),
        (lambda one: replace(one, entries=()), BAD_ENTRIES),
        (lambda one: replace(one, entries=(*one.entries, b"garbage")), BAD_ENTRIES),
        (lambda one: replace(one, epoch=3), BAD_ENTRIES),
        (lambda one: replace(one, epoch=3 + len(one.entries), state_id=uuid(1)), BAD_ENTRIES),
    ):
        assert asked(claims, own, side, change)[0] == code
        assert claims.newest_epoch == 0


def test_the_own_log_confirms_or_refutes_a_peer(history: History) -> None:
    own, newest = history.states[3], history.states[-1]
    read_ahead = ReadAhead()

    def remembered(state: ClusterState, data: bytes) -> Folded:
        from ringlog.kernel.model.outcome import Entry
        from ringlog.wire.entries import EncodedEntry

        item = decode_entry(data)
        assert isinstance(item, Entry)
        return read_ahead.fold(state, EncodedEntry(item, data))

    claims = PeerLogClaims(remembered)
    learned(claims, own, history.side())
    assert read_ahead.take(own, history.data[4]) is not None
    assert claims.compare(history.states[7], history.at) == ""
    assert claims.newest_epoch == newest.epoch
    assert claims.compare(newest, history.at, ended=True) == ""
    assert (claims.newest_epoch, claims.refuted) == (0, set())
    for lie in ("copied", "ahead"):
        claims = PeerLogClaims(fold_on)
        side = history.side(page_bytes=10**6)
        code, _ = asked(claims, own, side, lambda one, how=lie: false_answer(one, how, newest, Chance(1, "")))
        assert code in ("", BAD_ENTRIES), "another command may not apply there"
        if not code:
            assert claims.compare(newest, history.at, ended=True) == TWO
            assert (claims.newest_epoch, claims.refuted) == (0, {TWO})


def test_the_ids_of_an_entry_around_another_command_are_found_when_the_log_comes(cluster: Cluster) -> None:
    cluster.apply(Noop(), Noop())
    history = History(cluster)
    own = history.states[-3]
    claims = PeerLogClaims(fold_on)
    code, _ = asked(claims, own, history.side(), lambda one: false_answer(one, "copied", own, Chance(1, "")))
    assert (code, claims.newest_epoch) == ("", own.epoch + 2)
    assert claims.newest(own).state_id == history.states[-1].state_id
    assert claims.compare(history.states[-1], history.at) == TWO
    assert claims.newest_epoch == 0


# ----------------------------------------------------------------------------------------------------- order of sources


class Driver:
    """Performs the steps until an answer is missing. ``waits``: for messages, the log and peers."""

    def __init__(self, own: ClusterState, waits: list[int], log: list[ClusterState | None]) -> None:
        self.own = own
        self.waits = waits
        self.log = log
        self.sides: dict[str, EntryServer] = {}
        self.done: list[Any] = []

    def run(self, claims: PeerLogClaims, at: Callable[[Epoch], bytes | None]) -> list[Any]:
        steps = ask_peers(ONE, lambda: self.own, claims, at, SeededDraw(b"1"))
        with pytest.raises(IndexError):
            run_steps(steps, self.perform)
        return self.done

    def perform(self, effect: Any) -> Any:
        match effect:
            case AwaitBehind():
                return self.waits.pop(0)
            case AskLog():
                return self.log.pop(0)
            case AskPeer(request):
                self.done.append(request.node)
                side = self.sides.get(request.node)
                return None if side is None else side.answer(request)
            case Sleep(time):
                self.done.append(time)
            case PeerAnswered() as answered:
                self.done.append(answered.code)
            case PeerRefuted(peer):
                self.done.append(f"refuted {peer}")


def test_peers_are_asked_only_if_the_log_does_not_answer(history: History) -> None:
    own = history.states[3]
    driver = Driver(own, [0, 9, 2], [own, own])
    assert driver.run(PeerLogClaims(fold_on), history.at) == [protocol.REST, protocol.REST], "node 2 is running by then"


def test_members_are_asked_first_and_refuted_peers_never() -> None:
    state = applied(of(5), AddServiceMember(THREE))
    draws = [order_of(state, ONE, set(), SeededDraw(bytes((seed,)))) for seed in range(30)]
    assert {tuple(sorted(order)) for order in draws} == {tuple(sorted(set(state.nodes) - {ONE}))}
    member = replace(state.service[THREE], stage="member")
    state = replace(state, service=state.service.set(THREE, member))
    draws = [order_of(state, ONE, set(), SeededDraw(bytes((seed,)))) for seed in range(30)]
    assert {order[0] for order in draws} == {THREE}
    assert len({order[1] for order in draws}) == 3
    assert THREE not in order_of(state, ONE, {THREE}, SeededDraw(b"1"))
    gone = replace(state.nodes[TWO], state="left")
    assert TWO not in order_of(replace(state, nodes=state.nodes.set(TWO, gone)), ONE, set(), SeededDraw(b"1"))


def noops(count: int) -> tuple[Cluster, History]:
    """Return a cluster of three nodes with that many epochs that change nothing."""
    cluster = Cluster(state=replace(of(3), name="c"))
    start = cluster.state
    cluster.apply(*[Noop()] * count)
    history = History(Cluster())
    history.states = [*[start] * (start.epoch + 1)]
    history.data = [b""] * (start.epoch + 1)
    for record in cluster.log.read(0, 0, 100)[0]:
        history.states.append(fold_on(history.states[-1], record.data).state)
        history.data.append(record.data)
        history.recent.add(history.states[-1].epoch, record.data)
    return cluster, history


def test_rounds_without_news_become_rarer() -> None:
    _, history = noops(6)
    own = history.states[-7]
    driver = Driver(own, [0, 0, own.epoch + 99, own.epoch + 2], [None] * 3)
    driver.sides = {TWO: history.side(TWO), THREE: history.side(THREE)}
    claims = PeerLogClaims(fold_on)
    done = driver.run(claims, history.at)
    assert claims.newest_epoch == own.epoch + 6
    rests = [one for one in done if isinstance(one, int)]
    rest = protocol.REST
    assert rests == [rest, 2 * rest, rest, 4 * rest, rest], "and before each round that a message triggered"
    assert done[-1] == rest, "epochs that peers have shown are not requested again"


def test_the_own_log_decides_between_two_differing_peers() -> None:
    _, history = noops(3)
    own = history.states[-4]
    claims = PeerLogClaims(fold_on)
    claims.request(TWO, own)
    ahead = false_answer(EntriesReply(TWO, own.epoch, "", own.state_id), "ahead", own, Chance(1, ""))
    assert claims.take(TWO, ahead) == ""
    driver = Driver(own, [0], [None])
    driver.sides = {TWO: history.side(TWO), THREE: history.side(THREE)}
    done = driver.run(claims, history.at)
    assert OTHER_HISTORY in done
    assert claims.newest(own).state_id == history.states[-1].state_id


# ------------------------------------------------------------------------------------------------ over gRPC


class AwayLog(MemoryLog):
    """A log with a broker that may be unreachable."""

    is_away = False

    def end_offset(self, timeout_s: float = 1.0) -> int:
        if self.is_away:
            raise LogUnavailable("the broker is away")
        return super().end_offset(timeout_s)


def test_nodes_without_a_broker_exchange_entries_without_serving_them(tmp_path: Path) -> None:
    cluster, history = noops(8)
    start = Start(history.states[-9], 0)
    log = AwayLog()
    host, stopping = RegisterHost(TWO, tmp_path / "n2"), threading.Event()
    side = history.side(TWO)
    server = DataServer(
        host, RowReplica(TWO), lambda: start.state.cluster_id, "127.0.0.1", entries=side.answer, named=lambda _: None
    )
    server.start()

    def find(node: str) -> str:
        if node != TWO:
            raise Unreachable("it is down")
        return f"127.0.0.1:{server.port}"

    peers = Peers(find)
    try:
        with LogReplica(log, start=start) as replica:
            log.is_away = True
            replica.recent = RecentEntries()
            asking = PeerRequests(ONE, replica, peers, stopping)
            handlers = {Sleep: lambda effect: stopping.wait(effect.time / 1e6), **asking.handlers}
            thread = threading.Thread(target=_performed, args=(asking, handlers))
            thread.start()
            asking.named.report_epoch(start.state.epoch + 8)
            until(lambda: asking.newest_epoch == cluster.state.epoch, "the epochs of the peer to be known")
            assert replica.state == start.state, "entries of a peer are not served"
            log.is_away = False
            log.append(history.data[-8:])
            assert digest(replica.read_barrier()) == digest(cluster.state)
            until(lambda: asking._claims.newest_epoch == 0, "the log to confirm the epoch")
            assert asking._claims.refuted == set()
            stopping.set()
            thread.join(60)
            assert not thread.is_alive()
        answer = _asked_raw(server.port, EntriesRequest(uuid(1), TWO, 1, ""))
        assert answer.refused == FOREIGN_CLUSTER
        assert _asked_raw(server.port, EntriesRequest(start.state.cluster_id, ONE, 1, "")).refused == WRONG_NODE
    finally:
        stopping.set()
        peers.close()
        server.stop(0.1)
        host.close()


def _performed(asking: PeerRequests, handlers: dict[type, Callable[[Any], Any]]) -> None:
    try:
        run_steps(asking.steps(SystemDraw()), lambda effect: handlers[type(effect)](effect))
    except Stopped:
        return


def _asked_raw(port: int, request: EntriesRequest) -> EntriesReply:
    import grpc

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        return unpack(EntriesReply, channel.unary_unary(f"/{SERVICE}/Entries")(pack(request), timeout=60))


def test_the_greatest_named_epoch_is_returned_once() -> None:
    named = ClaimedEpochs()
    named.report_epoch(4)
    named.report_epoch(9)
    named.report_epoch(5)
    assert (named.take_greatest(0), named.take_greatest(0)) == (9, 0)
