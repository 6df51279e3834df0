"""Schema evolution with a hypothetical next version of a record and of a command.

The earlier release is the current one. The later release has another class and rule of *UnregisterNode* and two changed
schemas. It also keeps the current schemas, as version 1.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import pytest

from ringlog.kernel import registry
from ringlog.kernel.commands.cluster.features import EnableFeature
from ringlog.kernel.commands.topology.nodes import UnregisterNode, decide_unregister_node
from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import (
    Decision,
    Entry,
    EntryContext,
    OutcomeKind,
    Rejected,
    Undecodable,
    UnknownCommand,
)
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Before, Command
from ringlog.wire import commands
from ringlog.wire.avro import codec
from ringlog.wire.commands import decode_command, encode_command
from ringlog.wire.entries import author_entry, decode_entry
from ringlog_schemas import CatalogueSchema, catalogue, current, fingerprint_of, published
from ringlog_schemas.compatibility import successor_problems
from tests.kernel.entries import NODES, applied, entry, founded, node, uuid
from tests.wire.strategies import named_types, sample

RECORD, COMMAND = "ringlog.mutations.Mutation", "ringlog.commands.UnregisterNode"
FEATURE = "unregister_why"
CACHES = (
    *(catalogue._folder, catalogue.earlier, catalogue.by_fingerprint, catalogue.catalog),
    *(codec.layout, codec.header_of, codec._earlier_layout),
    *(commands.mapper, commands._earlier, commands._cached),
)


def next_version(name: str, **changes: Any) -> CatalogueSchema:
    """Return the schema with one more field, which has a default."""
    found = copy.deepcopy(dict(current()[name].json)) | changes
    found["fields"].append({"name": "why", "type": "string", "default": "", "doc": "Why."})
    return CatalogueSchema(name, found, fingerprint_of(found))


class UnregisterNodeWhy(Command):
    """Version 2 of UnregisterNode."""

    VERSION = 2

    node: Annotated[str, "Id of the node."]
    why: Annotated[str, "Why.", Before("")] = ""


UnregisterNodeWhy.__name__ = "UnregisterNode"


def decide(state: ClusterState, command: UnregisterNodeWhy, context: EntryContext) -> Decision:
    """Use the new field only after each member supports the feature."""
    found = state.features.get(FEATURE)
    if command.why and (found is None or found.enabled is None):
        return Rejected("feature_unsupported", f"why: {FEATURE} is not enabled")
    return decide_unregister_node(state, UnregisterNode(command.node), context)


@pytest.fixture
def schemas(tmp_path: Path) -> Path:
    """Return the folder with the schemas of the later release."""
    folder = tmp_path / "schemas"
    shutil.copytree(Path(str(catalogue._ROOT)), folder)
    for schema in (next_version(RECORD), next_version(COMMAND, **{catalogue.VERSION: 2})):
        path = folder / schema.family / f"{schema.name}.avsc"
        path.rename(path.with_name(f"{schema.name}.v1.avsc"))
        path.write_text(json.dumps(schema.json))
    return folder


@contextmanager
def later_release(schemas: Path) -> Iterator[None]:
    def forget() -> None:
        for cache in CACHES:
            cache.cache_clear()

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(catalogue, "_ROOT", schemas)
            patch.setitem(registry.COMMANDS, "UnregisterNode", UnregisterNodeWhy)
            patch.setitem(registry.VERSIONS, "UnregisterNode", 2)
            patch.setitem(registry.RULES, UnregisterNodeWhy, decide)
            forget()
            yield
    finally:
        forget()


def authored(state: ClusterState, command: Command) -> bytes:
    """Return the encoded entry of an author."""
    ids = state.cluster_id, uuid(900), state.state_id, uuid(901)
    return author_entry(*ids, state.epoch, "tester", 10_000_000, command).data


def read(data: bytes) -> Entry:
    found = decode_entry(data)
    assert isinstance(found, Entry)
    return found


def test_each_release_reads_the_records_of_the_other(schemas: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "_learned", {})
    ours, theirs = current()[RECORD], next_version(RECORD)
    assert successor_problems(theirs, ours) == ()
    record = sample(ours.json, named_types(ours.json), 1)
    first = codec.encode(RECORD, record)
    with later_release(schemas):
        second = codec.encode(RECORD, record | {"why": "because"})
        assert codec.decode(first) == (RECORD, record | {"why": ""})
        assert codec.decode(second) == (RECORD, record | {"why": "because"})
        assert (codec.has_current_schema(first), codec.has_current_schema(second)) == (False, True)
        assert {ours.hex, theirs.hex} <= dict(published()).keys()
        learned = dict(published())[theirs.hex]
    with pytest.raises(codec.WireError, match="unknown_fingerprint"):
        codec.decode(second)
    codec.learn(learned)
    assert codec.decode(second) == (RECORD, record)


def test_a_changed_command_needs_a_new_version() -> None:
    ours = current()[COMMAND]
    assert successor_problems(next_version(COMMAND), ours)
    assert successor_problems(next_version(COMMAND, **{catalogue.VERSION: 2}), ours) == ()


def test_only_the_later_release_reads_both_command_versions(schemas: Path) -> None:
    state = applied(founded(), node(1))
    first = encode_command(UnregisterNode(NODES[0]))
    assert first[:2] == ("UnregisterNode", 1)
    with later_release(schemas):
        second = encode_command(UnregisterNodeWhy(NODES[0], "because"))
        assert second[:2] == ("UnregisterNode", 2)
        assert decode_command(*first) == UnregisterNodeWhy(NODES[0])
        assert decode_command(*second) == UnregisterNodeWhy(NODES[0], "because")
        assert isinstance(decode_command("UnregisterNode", 1, b"\x04"), Undecodable)
        assert decode_command("UnregisterNode", 3, b"") == UnknownCommand("UnregisterNode", 3)
        unused = codec.layout(COMMAND).encode({"node": NODES[0], "why": ""})
        assert isinstance(decode_command("UnregisterNode", 2, unused), Undecodable), "one command has one encoding"
    assert decode_command(*second) == UnknownCommand("UnregisterNode", 2)
    folded = fold(state, entry(state, UnknownCommand("UnregisterNode", 2)))  # type: ignore[arg-type]
    assert (folded.outcome.kind, folded.outcome.code) == (OutcomeKind.HALT, "unknown_command")
    assert folded.state is state


def test_an_author_writes_version_2_after_the_feature(schemas: Path) -> None:
    state = applied(founded(), node(1))
    plain = authored(state, UnregisterNode(NODES[0]))
    with later_release(schemas):
        assert authored(state, UnregisterNodeWhy(NODES[0])) == plain, "the earlier release reads it"
        refused = fold(state, read(authored(state, UnregisterNodeWhy(NODES[0], "because"))))
        assert (refused.outcome.kind, refused.outcome.code) == (OutcomeKind.REFUSED, "feature_unsupported")
        folded = fold(state, read(plain))
        assert (folded.outcome.kind, folded.state.nodes[NODES[0]].state) == (OutcomeKind.APPLIED, "left")
        enabled = applied(state, EnableFeature(FEATURE))
        written = read(authored(enabled, UnregisterNodeWhy(NODES[0], "because")))
        assert written.version == 2
        folded = fold(enabled, written)
        assert (folded.outcome.kind, folded.state.nodes[NODES[0]].state) == (OutcomeKind.APPLIED, "left")
    assert fold(enabled, entry(enabled, node(2))).outcome.code == "feature_missing"
    assert fold(enabled, read(authored(enabled, UnregisterNode(NODES[0])))).outcome.kind is OutcomeKind.APPLIED
