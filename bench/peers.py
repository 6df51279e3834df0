"""etcd and ZooKeeper from Debian's packages, one member each, for the comparison in ``commits.py``.

Each runs in the foreground with its own folder and ports and the settings of its package. Both sync acknowledged data
to disk; a Kafka broker leaves that to its replicas. The client for etcd is grpcio with a few hand-written messages,
which is the fastest way in Python. The client for ZooKeeper is kazoo.

    etcdserverpb.KV: Put(1 key, 2 value); Txn(1 compare, 2 success, 3 failure) -> (1 header, 2 succeeded, 3 responses)
    Compare(1 result, 2 target, 3 key, 6 mod revision); RequestOp(1 range, 2 put); Range(1 key)
"""

from __future__ import annotations

import logging
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import grpc

from ringlog.stack import processes as ports

START_S = 30.0
CALL_S = 20.0
KEY = b"ringlog/one"
ZOOKEEPER_JAR = Path("/usr/share/java/zookeeper.jar")


class Answer(Protocol):
    """Pending calls."""

    def result(self) -> Any:
        """Result of a finished call."""
        ...

    def add_done_callback(self, act: Callable[[Any], Any]) -> Any:
        """Call ``act`` when it is there."""
        ...


class Peer(Protocol):
    """A store of keys that commits by a quorum."""

    def put(self, value: bytes) -> Answer:
        """Begin to write a key unconditionally."""
        ...

    def swap(self, slot: int, value: bytes) -> Answer:
        """Writer ``slot`` begins to write the one key that all contend for, if it is as this writer saw it last."""
        ...

    def won(self, slot: int, answer: Any) -> bool:
        """Was a swap done? Store the version that the writer has read."""
        ...


@contextmanager
def _running(command: list[str], log: Path) -> Iterator[None]:
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@contextmanager
def etcd(folder: Path) -> Iterator[Peer | None]:
    """One member; None where the package is not installed."""
    program = shutil.which("etcd")
    if program is None:
        yield None
        return
    folder.mkdir()
    client, peer = (f"http://{ports.HOST}:{port}" for port in ports.choose(2))
    urls = ["--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer]
    urls += ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
    with (
        _running([program, "--data-dir", str(folder / "data"), "--log-level", "error", *urls], folder / "log"),
        grpc.insecure_channel(client.removeprefix("http://")) as channel,
    ):
        grpc.channel_ready_future(channel).result(START_S)
        yield _Etcd(channel)


@contextmanager
def zookeeper(folder: Path) -> Iterator[Peer | None]:
    """One server; None where the package, Java or kazoo is not installed."""
    java = shutil.which("java")
    try:
        from kazoo.client import KazooClient
    except ImportError:
        java = None
    if java is None or not ZOOKEEPER_JAR.is_file():
        yield None
        return
    folder.mkdir()
    (port,) = ports.choose(1)
    lines = [f"dataDir={folder / 'data'}", f"clientPort={port}", f"clientPortAddress={ports.HOST}"]
    (folder / "zoo.cfg").write_text("\n".join([*lines, "tickTime=2000", "admin.enableServer=false", ""]))
    main = "org.apache.zookeeper.server.ZooKeeperServerMain"
    with _running([java, "-cp", str(ZOOKEEPER_JAR), main, str(folder / "zoo.cfg")], folder / "log"):
        logging.getLogger("kazoo").setLevel(logging.ERROR)
        client = KazooClient(f"{ports.HOST}:{port}", timeout=CALL_S)
        client.start(START_S)
        try:
            yield _ZooKeeper(client)
        finally:
            client.stop()
            client.close()


# ------------------------------------------------------------------------------------------------------------ etcd


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return _number(number << 3) + _number(value)
    return _number(number << 3 | 2) + _number(len(value)) + value


def _fields(message: bytes) -> dict[int, Any]:
    """The last value of each field."""
    found: dict[int, Any] = {}
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        tag = number()
        size = number()
        if tag & 7 == 2:
            found[tag >> 3] = message[at : at + size]
            at += size
        else:
            found[tag >> 3] = size
    return found


class _Etcd:
    def __init__(self, channel: grpc.Channel) -> None:
        self._put, self._txn = (channel.unary_unary(f"/etcdserverpb.KV/{name}") for name in ("Put", "Txn"))
        self._seen: dict[int, int] = {}

    def put(self, value: bytes) -> Answer:
        future: Answer = self._put.future(_field(1, KEY) + _field(2, value), timeout=CALL_S)
        return future

    def swap(self, slot: int, value: bytes) -> Answer:
        """A loser reads the present value in the same round trip."""
        compare = _field(1, 0) + _field(2, 2) + _field(3, KEY) + _field(6, self._seen.get(slot, 0))
        put, look = _field(2, _field(1, KEY) + _field(2, value)), _field(1, _field(1, KEY))
        future: Answer = self._txn.future(_field(1, compare) + _field(2, put) + _field(3, look), timeout=CALL_S)
        return future

    def won(self, slot: int, answer: Any) -> bool:
        found = _fields(answer)
        if found.get(2):
            self._seen[slot] = _fields(found[1])[3]
            return True
        there = _fields(_fields(found[3])[1])[2]
        self._seen[slot] = _fields(there)[3]
        return False


# ------------------------------------------------------------------------------------------------------- ZooKeeper


class _Asked:
    """kazoo's result as a future."""

    def __init__(self, asked: Any) -> None:
        self._asked = asked

    def result(self) -> Any:
        return self._asked.get(timeout=CALL_S)

    def add_done_callback(self, act: Callable[[Any], Any]) -> None:
        self._asked.rawlink(lambda _: act(self))


class _Swapped(_Asked):
    """Whether it was done, and the version that the key has then; None if that must be read."""

    def result(self) -> tuple[bool, int | None]:
        from kazoo.exceptions import BadVersionError

        try:
            return True, super().result().version
        except BadVersionError:
            return False, None


class _Looked(_Asked):
    """A swap that was not tried: the writer reads the version first."""

    def result(self) -> tuple[bool, int | None]:
        return False, super().result().version


class _ZooKeeper:
    def __init__(self, client: Any) -> None:
        self._client = client
        self._path = "/ringlog"
        client.create(self._path, b"")
        self._seen: dict[int, int | None] = {}

    def put(self, value: bytes) -> Answer:
        return _Asked(self._client.set_async(self._path, value))

    def swap(self, slot: int, value: bytes) -> Answer:
        """A writer without a version reads it, and loses."""
        seen = self._seen.get(slot)
        if seen is None:
            return _Looked(self._client.exists_async(self._path))
        return _Swapped(self._client.set_async(self._path, value, seen))

    def won(self, slot: int, answer: Any) -> bool:
        done, self._seen[slot] = answer
        return bool(done)
