"""Mutual TLS between nodes: accepted and refused certificates, and the address checks of clients.

Real gRPC and real HTTP on ports of 127.0.0.1: a certificate names a node, not an address.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from structlog.testing import capture_logs

from ringlog.client.data.peers import Peers, StatusPages, Unreachable
from ringlog.client.errors import NotAuthorized
from ringlog.kernel.commands.control.principals import CreatePrincipal, RevokePrincipal
from ringlog.kernel.commands.topology.nodes import UnregisterNode
from ringlog.kernel.values import Command, replace
from ringlog.node.identity import NodeFolder, NodeOptions
from ringlog.node.rows.replica import RowReplica
from ringlog.node.servers import data_server
from ringlog.node.servers.http_server import HttpServer, make_api
from ringlog.runtime.certificates import serial_of
from ringlog.runtime.clock import ManualClock
from ringlog.runtime.logs import RateLimitedWarnings, get_logger
from ringlog.runtime.trust import TRUST_VARIABLE, CertificateOfAnotherNode, Trust, TrustFile, use_trust_file
from ringlog.wire.data import (
    BEHIND,
    FOREIGN_CERTIFICATE,
    NOT_AUTHORIZED,
    NOT_READY,
    EntriesReply,
    EntriesRequest,
    ReadReply,
    ReadRequest,
    ReadRowsReply,
    ReadRowsRequest,
    RegisterCell,
    RowsRequest,
    StatusReply,
    StatusRequest,
    StreamPage,
    StreamRequest,
    WriteReply,
    WriteRequest,
    key_of,
    pack,
    unpack,
)
from tests.certificates import needs_openssl, trusts
from tests.ending import stopping
from tests.faults.proxy import Proxy, Shape
from tests.kernel.entries import uuid
from tests.node.data_world import DataNode, DataWorld, until

pytestmark = needs_openssl

HOST = "127.0.0.1"
CALL_S = 30.0
IDS = {f"n{number}": uuid(number, space=2) for number in (1, 2, 3)}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("authority") / "ours"


@pytest.fixture(scope="module")
def known(authority: Path) -> dict[str, Trust]:
    """Return the certificates of nodes and of an operator."""
    return trusts(authority, IDS, "ops")


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Trust:
    """Return a certificate for node 1 by another authority."""
    return trusts(tmp_path_factory.mktemp("authority") / "theirs", {"n1": IDS["n1"]})["n1"]


@pytest.fixture
def world(
    tmp_path: Path, authority: Path, known: dict[str, Trust], monkeypatch: pytest.MonkeyPatch
) -> Iterator[DataWorld]:
    """Return two nodes, and a coordinator with the operator's certificate."""
    monkeypatch.setenv(TRUST_VARIABLE, "")
    use_trust_file(authority / "ops.properties")
    made = DataWorld(tmp_path, 1, trust_of=lambda number: lambda: known[f"n{number}"])
    made.join(1, 0)
    yield made
    made.close()


def call(world: DataWorld, node: DataNode, trust: Trust, method: str, request: Any) -> bytes | None:
    """Return the answer of a node to a client with ``trust``, or None without an answer."""
    peers, answer = Peers(world.find, lambda: trust), Future[bytes | None]()
    try:
        peers.call(node.id, method, pack(request), CALL_S, answer.set_result)
        return answer.result(CALL_S)
    finally:
        peers.close()


def status(world: DataWorld, node: DataNode, trust: Trust) -> StatusReply | None:
    found = call(world, node, trust, "Status", StatusRequest(world.state.cluster_id, node.id))
    return None if found is None else unpack(StatusReply, found)


def stream(world: DataWorld, trust: Trust, method: str, request: Any) -> StreamPage:
    """Return the first page of a stream."""
    with closing(Peers(world.find, lambda: trust)) as peers:
        return unpack(StreamPage, next(peers.stream(request.node, method, pack(request), CALL_S)))


# ------------------------------------------------------------------------------------------------------------ gRPC


def test_trusted_nodes_write_read_and_stream_registers(world: DataWorld) -> None:
    names = [f"k{number}".encode() for number in range(20)]
    for number, name in enumerate(names):
        world.coordinator.write("ks", name, b"v", timestamp=number + 1)
    joined = world.join(2, 2**62)
    assert joined.host.value.durable.cells
    assert all((cell := world.coordinator.read("ks", name).cell) and cell.value == b"v" for name in names)


def test_clients_without_a_certificate_are_refused(world: DataWorld, known: dict[str, Trust], strange: Trust) -> None:
    node, ops = world.nodes[1], known["ops"]
    assert status(world, node, ops) is not None
    for stranger in (Trust(), strange, replace(strange, ca=ops.ca)):
        assert status(world, node, stranger) is None


def test_a_first_connection_may_take_several_slow_round_trips(
    world: DataWorld, known: dict[str, Trust], monkeypatch: pytest.MonkeyPatch
) -> None:
    node, listening = world.nodes[1], socket.create_server((HOST, 0))
    with closing(Proxy(listening.getsockname()[1], node.server.port, listening=listening)) as far:
        far.start().shape(Shape(latency_s=0.15))
        monkeypatch.setattr(world, "find", lambda _: f"{HOST}:{far.port}")
        assert status(world, node, known["ops"]) is not None


def test_only_the_intended_node_receives_a_request(
    world: DataWorld, known: dict[str, Trust], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = world.begin(2)
    asked: list[object] = []
    monkeypatch.setattr(other.server, "_status", lambda *given: asked.append(given))
    monkeypatch.setattr(world, "find", lambda _: f"{HOST}:{other.server.port}")
    assert (status(world, world.nodes[1], known["ops"]), asked) == (None, [])


def test_streams_go_to_the_node_that_the_certificate_names(world: DataWorld, known: dict[str, Trust]) -> None:
    source, state = world.nodes[1], world.state
    head = state.cluster_id, source.id, state.epoch, state.state_id
    what = "join-9", "simple:1", ((0, 5),)
    cells = StreamRequest(*head, IDS["n2"], *what, None)
    rows = RowsRequest(*head, IDS["n2"], *what, (), None)
    for method, request in (("Stream", cells), ("StreamRows", rows)):
        for name in ("n3", "ops"):
            page = stream(world, known[name], method, request)
            assert (page.refused, page.node) == (FOREIGN_CERTIFICATE, source.id), (method, name)
        assert stream(world, known["n2"], method, request).refused not in ("", FOREIGN_CERTIFICATE)


def test_entries_go_to_nodes_that_have_not_left(world: DataWorld, known: dict[str, Trust]) -> None:
    world.begin(2)
    source = world.nodes[1]

    def answered(name: str) -> str:
        source.row_replica.adopt(world.state)
        request = EntriesRequest(world.state.cluster_id, source.id, 0, "")
        found = call(world, source, known[name], "Entries", request)
        assert found is not None
        return unpack(EntriesReply, found).refused

    assert [answered(name) for name in ("n2", "n3", "ops")] == [NOT_READY, NOT_READY, FOREIGN_CERTIFICATE]
    world.submit(UnregisterNode(IDS["n2"]))
    assert answered("n2") == FOREIGN_CERTIFICATE


def test_a_node_that_has_left_reads_and_writes_nothing(world: DataWorld, known: dict[str, Trust]) -> None:
    world.begin(2)
    source, state = world.nodes[1], world.state
    key, cell = key_of("ks", b"k"), RegisterCell(1, b"v")
    head = state.cluster_id, source.id, state.epoch, state.state_id
    calls: dict[str, tuple[Any, Any]] = {
        "Write": (WriteRequest(*head, key, cell), WriteReply),
        "Read": (ReadRequest(*head, key, False), ReadReply),
        "ReadRows": (ReadRowsRequest(*head, "ks.t", "", b"", (), False, False), ReadRowsReply),
        "Status": (StatusRequest(*head[:2]), StatusReply),
    }

    def refusals(name: str) -> set[str]:
        source.row_replica.adopt(world.state)
        found = {method: call(world, source, known[name], method, request) for method, (request, _) in calls.items()}
        return {unpack(calls[method][1], answer or b"").refused for method, answer in found.items()}

    assert FOREIGN_CERTIFICATE not in refusals("n2") | refusals("ops")
    world.submit(UnregisterNode(IDS["n2"]))
    assert refusals("n2") == {FOREIGN_CERTIFICATE}
    assert FOREIGN_CERTIFICATE not in refusals("ops")


def test_rows_and_registers_need_a_principal_with_the_role_application(
    world: DataWorld, authority: Path, known: dict[str, Trust], monkeypatch: pytest.MonkeyPatch
) -> None:
    more = trusts(authority, {}, "elsewhere", "ann", "stranger")
    node, key, cell = world.nodes[1], key_of("ks", b"k"), RegisterCell(1, b"v")

    def refusals(trust: Trust) -> set[str]:
        node.row_replica.adopt(world.state)
        head = world.state.cluster_id, node.id, world.state.epoch, world.state.state_id
        calls: dict[str, tuple[Any, Any]] = {
            "Write": (WriteRequest(*head, key, cell), WriteReply),
            "Repair": (WriteRequest(*head, key, cell), WriteReply),
            "Read": (ReadRequest(*head, key, False), ReadReply),
            "ReadRows": (ReadRowsRequest(*head, "ks.t", "", b"", (), False, False), ReadRowsReply),
        }
        found = {method: call(world, node, trust, method, request) for method, (request, _) in calls.items()}
        return {unpack(calls[method][1], answer or b"").refused for method, answer in found.items()}

    strangers = (more["elsewhere"], more["ann"], more["stranger"], known["n2"])
    world.coordinator.write("ks", b"k", b"v", timestamp=1)
    for trust in strangers:
        assert NOT_AUTHORIZED not in refusals(trust), "the cluster has no principals"
    for principal in (
        CreatePrincipal("ann", "admin"),
        CreatePrincipal("ops", "application", ("ks",)),
        CreatePrincipal("elsewhere", "application", ("other",)),
    ):
        world.submit(principal)
    for trust in strangers:
        assert refusals(trust) == {NOT_AUTHORIZED}
    assert NOT_AUTHORIZED not in refusals(known["ops"])
    assert world.coordinator.read("ks", b"k").cell == cell

    world.submit(RevokePrincipal("ops"))
    monkeypatch.setattr(data_server, "_warnings", RateLimitedWarnings(get_logger("ringlog.node")))
    with capture_logs() as told:
        assert refusals(known["ops"]) == {NOT_AUTHORIZED}
    (noted,) = [one for one in told if one["event"] == "call_refused"]
    assert (noted["code"], HOST in noted["peer"], "ops" in noted["why"]) == (NOT_AUTHORIZED, True, True)
    with pytest.raises(NotAuthorized, match=r"ops was revoked with epoch \d+; rows of the keyspace ks need the role"):
        world.coordinator.write("ks", b"k", b"w", timestamp=2)
    assert node.host.value.durable.cells[key] == cell


def test_a_request_that_waited_for_a_revocation_is_refused(world: DataWorld, known: dict[str, Trust]) -> None:
    """The node admits a request under the state that it waited for, not under that of its arrival."""
    node = world.nodes[1]
    world.submit(CreatePrincipal("ann", "admin"))
    world.submit(CreatePrincipal("ops", "application"))
    node.is_following = False
    world.submit(RevokePrincipal("ops"))
    head = world.state.cluster_id, node.id, world.state.epoch, world.state.state_id
    write = pack(WriteRequest(*head, key_of("ks", b"k"), RegisterCell(1, b"v")))
    answer = Future[bytes | None]()
    with closing(Peers(world.find, lambda: known["ops"])) as peers:
        peers.call(node.id, "Write", write, CALL_S, answer.set_result)
        until(lambda: node.hurries[1] or answer.done(), "the request to wait")
        node.is_following = True
        node.follow()
        reply = unpack(WriteReply, answer.result(CALL_S) or b"")
    assert reply.refused in (NOT_AUTHORIZED, BEHIND)
    assert not node.host.value.durable.cells


@pytest.mark.parametrize("by", ["serial", "name"])
def test_a_revoked_certificate_is_refused_within_a_second(
    tmp_path: Path, authority: Path, known: dict[str, Trust], monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setenv(TRUST_VARIABLE, "")
    revoked, config = tmp_path / "revoked", tmp_path / "n1.properties"
    lines = (authority / "n1.properties").read_text().replace("=", f"={authority}/")
    config.write_text(f"{lines}revoked.file={revoked}\n")

    def revoke(text: str) -> None:
        """Replace the file at once: a reader of an unfinished file would keep its contents for a while."""
        new = tmp_path / "new"
        new.write_text(text)
        new.replace(revoked)

    revoke("# none yet\n")
    file = TrustFile(config, recheck_s=0)
    world = DataWorld(tmp_path, 1, trust_of=lambda _: file.now)
    try:
        world.join(1, 0)
        node, ops = world.nodes[1], known["ops"]
        peers, page = Peers(world.find, lambda: ops), StatusRequest(world.state.cluster_id, node.id)

        def answered() -> bytes | None:
            answer = Future[bytes | None]()
            peers.call(node.id, "Status", pack(page), CALL_S, answer.set_result)
            return answer.result(CALL_S)

        with closing(peers):
            assert answered() is not None
            serial = serial_of(ssl.PEM_cert_to_DER_cert((authority / "ops.pem").read_text()))
            revoke(f"{serial:x}  # stolen" if by == "serial" else "OPS.clients.ringlog\n")
            assert answered() is None, "the connection was open before"
            assert status(world, node, known["n2"]) is not None
            request = StreamRequest(world.state.cluster_id, node.id, 1, "", IDS["n2"], "join-9", "simple:1", (), None)
            with pytest.raises(grpc.RpcError, match="revoked"):
                stream(world, ops, "Stream", request)
            revoke("")
            assert answered() is not None
    finally:
        world.close()


def test_certificates_are_renewed_while_the_node_runs(
    tmp_path: Path, known: dict[str, Trust], strange: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRUST_VARIABLE, "")
    given = known["n1"]
    world = DataWorld(tmp_path, 1, trust_of=lambda _: lambda: given)
    peers = Peers(world.find, lambda: given)
    try:
        node = world.begin(1)
        before = peers.channel(node.id)
        assert (status(world, node, known["ops"]) is None, peers._cached_channel(node.id)) == (False, before)
        given = strange
        assert (status(world, node, known["ops"]), status(world, node, strange) is None) == (None, False)
        assert peers._cached_channel(node.id) is None
    finally:
        peers.close()
        world.close()


# ------------------------------------------------------------------------------------------------------------ HTTP


def refusing(authority: Path, certificate: str) -> Trust:
    """Return the operator's trust with one revoked certificate."""
    revoked, config = authority / "revoked", authority / "refusing.properties"
    revoked.write_text(certificate)
    config.write_text(f"{(authority / 'ops.properties').read_text()}revoked.file=revoked\n")
    return TrustFile(config).now()


def test_a_node_is_found_with_a_token_and_its_identity_is_checked(
    world: DataWorld, authority: Path, known: dict[str, Trust]
) -> None:
    ours, other = known["n1"], known["ops"]
    state = world.state

    class Data:
        """The data side's entry on the status page."""

        port = 7401

        class asking:
            newest_epoch = 3

        def status(self) -> StatusReply:
            return StatusReply(IDS["n1"], 3)

    row_replica = RowReplica(IDS["n1"])
    row_replica.adopt(state)
    with socket.create_server((HOST, 0)) as listening:
        address = f"{HOST}:{listening.getsockname()[1]}"
        data: Any = Data()
        api = make_api(row_replica, "n1", ManualClock(1), data, trust=lambda: ours)
        with stopping(HttpServer(api, listening, lambda: ours)) as server:
            server.start()
            nodes = {name: replace(state.nodes[IDS["n1"]], address=address) for name in (IDS["n1"], IDS["n2"])}
            there = replace(state, nodes=state.nodes.update(nodes))
            assert StatusPages(lambda: there, lambda: other)(IDS["n1"]) == f"{HOST}:7401"
            with pytest.raises(Unreachable, match="mismatch"):
                StatusPages(lambda: there, lambda: other)(IDS["n2"])
            wrong = replace(other, tokens=("a-token-of-somebody-else",))
            with pytest.raises(Unreachable, match="401"):
                StatusPages(lambda: there, lambda: wrong)(IDS["n1"])
            with pytest.raises(Unreachable):
                StatusPages(lambda: there, Trust)(IDS["n1"])
            assert StatusPages(lambda: there, lambda: refusing(authority, "ab:cd"))(IDS["n1"])
            with pytest.raises(Unreachable, match="revoked"):
                StatusPages(lambda: there, lambda: refusing(authority, f"{IDS['n1']}.nodes.ringlog"))(IDS["n1"])
            with httpx.Client(verify=False, trust_env=False) as http:
                answer = http.get(f"https://{address}/v1/status")
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")


def test_rows_over_http_need_a_certificate_and_its_right(
    world: DataWorld, authority: Path, known: dict[str, Trust], strange: Trust
) -> None:
    ours = [known["n1"]]
    row_replica = RowReplica(IDS["n1"])
    world.begin(2)

    def adopt(*commands: Command) -> None:
        for command in commands:
            world.submit(command)
        row_replica.adopt(world.state)

    adopt()
    with socket.create_server((HOST, 0)) as listening:
        url, name = f"https://{HOST}:{listening.getsockname()[1]}", f"{IDS['n1']}.nodes.ringlog"
        api = make_api(row_replica, "n1", ManualClock(1), trust=lambda: ours[0])

        def status(trust: Trust, path: str = "/v1/tables/ks.t/rows/00", token: bool = False) -> tuple[int, str]:
            headers = trust.headers() if token else {}
            with httpx.Client(verify=trust.client or False, trust_env=False, base_url=url, headers=headers) as http:
                answer = http.get(path, extensions={"sni_hostname": name})
                posted = http.post("/v1/tables/ks.t/rows", extensions={"sni_hostname": name})
            assert path == "/v1/status" or posted.status_code == answer.status_code
            return answer.status_code, answer.json().get("detail", "")

        with stopping(HttpServer(api, listening, lambda: ours[0])) as server:
            server.start()
            anonymous = replace(known["ops"], client=ssl._create_unverified_context())
            refused = (401, "rows need a valid client certificate")
            assert (status(anonymous), status(anonymous, token=True)) == (refused, refused), "a token reads no rows"
            assert status(anonymous, "/v1/status", token=True)[0] == 200
            assert status(known["ops"])[0] == 503, "the node is not ready, so the request was admitted"
            assert status(known["ops"], "/v1/status")[0] == 401
            with pytest.raises(httpx.TransportError):
                status(replace(strange, client=strangers_context(authority, strange)))
            assert status(known["n2"])[0] == 503
            adopt(UnregisterNode(IDS["n2"]))
            assert status(known["n2"]) == (403, "foreign_certificate: node n2 has left")
            adopt(CreatePrincipal("ann", "admin"))
            lacks = "ops is not a principal; rows of the keyspace ks need the role application there"
            assert status(known["ops"], token=True) == (403, f"not_authorized: {lacks}")
            adopt(CreatePrincipal("ops", "application", ("ks",)))
            assert status(known["ops"])[0] == 503
            adopt(RevokePrincipal("ops"))
            assert status(known["ops"])[0] == 403
            ours[0] = replace(ours[0], revoked=frozenset({"ops.clients.ringlog"}))
            assert status(known["ops"]) == refused


def strangers_context(authority: Path, strange: Trust) -> ssl.SSLContext:
    """Return a client's context with a certificate of another authority, which trusts our servers."""
    context = ssl.create_default_context(cafile=authority / "ca.pem")
    folder = authority.parent / "strange"
    folder.mkdir(exist_ok=True)
    (folder / "pem").write_bytes(strange.certificate + strange.key)
    context.load_cert_chain(folder / "pem")
    return context


# ---------------------------------------------------------------------------------------------------------- folder


def test_a_node_with_the_certificate_of_another_node_changes_nothing(tmp_path: Path) -> None:
    options = NodeOptions("n1", HOST, 0, "dc1", "r1", 2, tmp_path / "n1", certified=IDS["n1"])
    first = NodeFolder(options)
    assert first.node == IDS["n1"]
    first.close()
    before = {path.name: path.read_bytes() for path in options.folder.iterdir()}
    with pytest.raises(CertificateOfAnotherNode, match=f"names node {IDS['n2']}.*chosen by"):
        NodeFolder(replace(options, certified=IDS["n2"]))
    assert {path.name: path.read_bytes() for path in options.folder.iterdir()} == before
    NodeFolder(options).close()


def test_peers_find_a_node_at_its_advertised_host() -> None:
    options = NodeOptions("n1", "0.0.0.0", 7101, "dc1", "r1", 2, Path("n1"), "10.0.0.1")
    assert (options.address(7101), options.hosts) == ("10.0.0.1:7101", ("0.0.0.0", "10.0.0.1"))
    assert replace(options, host="::1", advertise="").address(7101) == "[::1]:7101"
