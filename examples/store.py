"""A small store: rows in SQLite, JSON over TCP. Usage: python store.py BROKER CLUSTER NAME HOST PORT FOLDER"""

import json
import socket
import sqlite3
import sys
import threading
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any

from ringlog import ClusterState, Gain, Loss, NodeInfo, Participant, connect, replicas

TABLE = "CREATE TABLE IF NOT EXISTS rows (place, token, key, at, value, PRIMARY KEY (place, key, at))"
PUT = "INSERT OR IGNORE INTO rows VALUES (?, ?, ?, ?, ?)"
GET = "SELECT at, value FROM rows WHERE place = ? AND key = ? ORDER BY at DESC LIMIT 1"  # the newest write wins


def ask(address: str, **asked: Any) -> Any:
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), 5) as connection:
        connection.sendall(json.dumps(asked).encode() + b"\n")
        return json.load(connection.makefile())


class Rows:
    def __init__(self, file: str) -> None:
        self.lock, self.state, self.drained = threading.Lock(), ClusterState(), 0
        self.db = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
        self.db.executescript(f"PRAGMA synchronous = FULL; {TABLE}")

    def adopt(self, before: ClusterState | None, after: ClusterState) -> None:
        with self.lock:
            self.state = after

    def drain(self, below: int) -> None:
        with self.lock:  # a write is admitted and applied under the lock, so none is open now
            self.drained = below

    def fetch(self, gain: Gain) -> Any:
        for row in ask(gain.source.address, to="rows", epoch=gain.epoch, places=gain.places, ranges=gain.ranges):
            self.db.execute(PUT, row)
            yield json.dumps(row).encode()

    def forget(self, loss: Loss) -> None:
        for place, _, key, *_ in self.rows(loss):
            self.db.execute("DELETE FROM rows WHERE place = ? AND key = ?", (place, key))

    def rows(self, part: Loss) -> list[Any]:
        return [row for row in self.db.execute("SELECT * FROM rows").fetchall() if part.has(row[0], row[1])]

    def answer(self, node: str, to: str, epoch: int, **asked: Any) -> Any:
        """Answer other nodes and clients, who name the epoch that they act under. None: behind, or not a replica."""
        with self.lock:
            if self.drained < epoch:
                return None
            if to == "rows":
                return self.rows(Loss(**asked))
            found = replicas(self.state, asked["place"], asked["key"].encode())
            if node not in [one.id for one in (found.write if to == "put" else found.read)]:
                return None
            if to == "put":
                self.db.execute(PUT, (asked["place"], found.token, asked["key"], asked["at"], asked["value"]))
            return {"epoch": self.state.epoch, "row": self.db.execute(GET, (asked["place"], asked["key"])).fetchone()}


def main(broker: str, cluster: str, name: str, host: str, port: str, folder: str) -> None:
    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(json.dumps(store.answer(node.id, **json.loads(self.rfile.readline()))).encode())

    with connect(broker, cluster, name) as client:
        store = Rows(f"{folder}.db")
        node = Participant(client, NodeInfo(name, f"{host}:{port}"), store, folder=folder)
        ThreadingTCPServer.allow_reuse_address = True
        threading.Thread(target=ThreadingTCPServer((host, int(port)), Handler).serve_forever, daemon=True).start()
        node.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
