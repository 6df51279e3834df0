"""Golden bytes for programs in other languages: ``docs/build/golden/requests.json`` and ``changes.json``.

``python -m tests.wire.golden_wire`` writes the files. The validator decides the commands, so the entries, results and
change records are those of a real cluster.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ringlog.kernel.changes import diff
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.commands.control.recovery import EnterRecovery, ForcedPart, ForceState, LeaveRecovery
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace, DropKeyspace
from ringlog.kernel.commands.schema.tables import CreateTable
from ringlog.kernel.commands.topology.movements import Join
from ringlog.kernel.commands.topology.nodes import DeclareDown
from ringlog.kernel.encoding.encoder import encode, encoded_parts
from ringlog.kernel.values import CdcOptions, Column, Command, DatacenterReplication, Replication
from ringlog.protocol.validator.core import add_requests, begin_batch, settle_batch
from ringlog.protocol.validator.values import CommitChain, Publish, Validator
from ringlog.wire.avro.codec import HEADER_BYTES, decode, layout
from ringlog.wire.changes import encode_change_record
from ringlog.wire.commands import digest_of, encode_command
from ringlog.wire.records import CommandRequest, encode_request, encode_result
from ringlog.wire.requests import encode_request_batch
from tests.agents.world import NOW, World
from tests.kernel.entries import SEED, founded, node, uuid, with_normal_nodes

FOLDER = Path(__file__).parents[2] / "docs" / "build" / "golden"
RENEW = "renew the files: python -m tests.wire.golden_wire"
SUBMITTER = "golden"
COLUMNS = (Column("id", "text"), Column("placed", "timestamp"), Column("total", "int"))
DC1 = DatacenterReplication("dc1", 2, ())


class Cluster(World):
    """A cluster of three nodes with a validator that decides one request at a time."""

    def __init__(self) -> None:
        super().__init__(history_entries=100)
        nodes = encoded_parts(with_normal_nodes(founded(), 3))
        forced = tuple(ForcedPart(name, nodes[name]) for name in ("nodes", "node_names", "token_owners"))
        enter, force = EnterRecovery("nodes", "ann"), ForceState("nodes", "ann", forced)
        for command in (Noop(), Noop(), Noop(), enter, force, LeaveRecovery("done", "ann")):
            self.direct(command)
        self.take_over(1)
        self.validator = Validator("instance-1", 1)
        self.asked = 0
        self.changes: list[dict[str, Any]] = []

    def ask(self, what: str, command: Command, **given: Any) -> dict[str, Any]:
        """Decide a request and return its case. ``given`` replaces fields of the request."""
        self.asked += 1
        kind, version, payload = encode_command(command)
        values = {"request_id": uuid(self.asked, space=9), "since_epoch": self.state.epoch, "submitter": SUBMITTER}
        request = CommandRequest(**{**values, "kind": kind, "version": version, "payload": payload, **given})
        before = self.state
        entries, results = self._decided(request)
        self.changes += [_change(what, *encode_change_record(one)) for one in diff(before, self.state)]
        is_command = not given.keys() & {"kind", "payload"}
        fields = layout(f"ringlog.commands.{kind}").decode(payload, canonical=True) if is_command else None
        kind, version, payload = request.kind, request.version, request.payload
        return {
            "what": what,
            "kind": kind,
            "version": version,
            "fields": _plain(fields),
            "payload": payload.hex(),
            "hashed": encode((kind, version, payload)).hex(),
            "digest": digest_of(kind, version, payload),
            "request": _record(encode_request(request)),
            "entry": _record(entries[0]) if entries else None,
            "epoch": self.state.epoch if entries else None,
            "results": [_record(one) for one in results],
        }

    def _decided(self, request: CommandRequest) -> tuple[list[bytes], list[bytes]]:
        """Return the entries that the validator appends for a request, and its results."""
        core = add_requests(self.validator, [(self.asked, (request,))]).validator
        step = begin_batch(core, self.state, NOW, self.draw)
        entries: list[bytes] = []
        if isinstance(step.effects[0], CommitChain):
            entries = [encoded.data for encoded in step.effects[0].chain.entries]
            step = settle_batch(step.validator, self.land_all(step.effects[0].chain))
        self.validator = step.validator
        published = [one for effect in step.effects if isinstance(effect, Publish) for one in effect.results]
        return entries, [encode_result(one) for one in published]


def made() -> dict[str, Any]:
    """Return the content of each file, by file name."""
    cluster = Cluster()
    wide = CreateKeyspace("wide", Replication("network", 2, (DC1,)))
    item = b"\x06dc1\x04\0"
    sized = encode_command(wide)[2].replace(b"\x02" + item, b"\x01\x0c" + item)
    first = CreateKeyspace("shop", Replication("simple", 3))
    created = cluster.ask("a command that is applied", first)
    again = {"request_id": uuid(1, space=9), "since_epoch": created["request"]["says"]["since_epoch"]}
    cases = [
        created,
        cluster.ask("the same request again: nothing is written", first, **again),
        cluster.ask("another command under the same request id", Noop(), **again),
        cluster.ask("a command that is rejected", first),
        cluster.ask("a command without fields", Noop()),
        cluster.ask("nested records", wide),
        cluster.ask(
            "optional and boolean fields",
            CreateTable("shop", "orders", uuid(1, space=6), COLUMNS, ("id",), (), CdcOptions(True, "full", ttl=3_600)),
        ),
        cluster.ask("letters beyond ASCII", DeclareDown(uuid(1, space=2), "größe " * 3)),
        cluster.ask("keys that are gone", DropKeyspace("wide")),
        cluster.ask("a node is registered", node(4)),
        cluster.ask("numbers of 64 bits, and bytes", Join(uuid(4, space=2), (-(2**63) + 1, -1, 2**62), SEED)),
        cluster.ask("a kind that the validator does not know", Noop(), kind="NoSuchCommand"),
        cluster.ask("an array in a block with a size, which is not canonical", wide, payload=sized),
        cluster.ask("an applied request again, which asks for a result", first, **again, answer_applied=True),
    ]
    two = [bytes.fromhex(case["request"]["record"]) for case in cases[3:5]]
    for _ in range(100):
        cluster.direct()
    cases.append(cluster.ask("an old request, whose effect is unknown", Noop(), since_epoch=1))
    requests = {"cases": cases, "batch": _record(encode_request_batch(two))}
    return {"requests.json": requests, "changes.json": {"cases": cluster.changes}}


def _change(what: str, topic: str, key: bytes, value: bytes | None) -> dict[str, Any]:
    return {"what": what, "topic": topic, "key": key.decode(), **(_record(value) if value else {"record": None})}


def _record(data: bytes) -> dict[str, Any]:
    """Return a single object with its schema and its fields."""
    name, says = decode(data)
    fingerprint = data[2:HEADER_BYTES][::-1].hex()
    return {"schema": name, "fingerprint": fingerprint, "record": data.hex(), "says": _plain(says)}


def _plain(value: Any) -> Any:
    """Return a value in JSON form, with bytes as hex."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def text(content: Any) -> str:
    """Return the text of a file."""
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, content in made().items():
        (FOLDER / name).write_text(text(content), encoding="utf-8")
