"""Entries and commands decode to the authored value. Undecodable bytes decode to a value, not an error."""

from __future__ import annotations

import random
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlog.kernel.commands.cluster.cluster import InitializeCluster, Noop
from ringlog.kernel.commands.topology.movements import Join
from ringlog.kernel.encoding.encoder import command_digest
from ringlog.kernel.model.outcome import Entry, Undecodable, UnknownCommand, UnreadableEntry
from ringlog.kernel.registry import COMMANDS, VERSIONS
from ringlog.wire import commands, entries
from ringlog.wire.avro import mapping
from ringlog.wire.avro.codec import encode, layout
from ringlog.wire.avro.mapping import IDS_CACHED_MAX, id_bytes, id_text, uncached_id_text, uuid_bytes, uuid_text
from ringlog.wire.commands import (
    CACHED_BYTES_MAX,
    CACHED_MAX,
    cached_command,
    decode_command,
    digest_of,
    encode_command,
)
from ringlog.wire.entries import author_entry, decode_entry, encode_entry
from ringlog.wire.errors import WireError
from ringlog_schemas import VERSION, current

CLUSTER, STATE, BEFORE, REQUEST = (f"0190a5dc-ac96-774b-bcce-b302099a805{n}" for n in range(4))


def authored(command, previous=BEFORE):
    return author_entry(CLUSTER, STATE, previous, REQUEST, 7, "me", 1_700_000_000_000_000, command)


@pytest.mark.parametrize("previous", [BEFORE, None])
@pytest.mark.parametrize("command", [Noop(), InitializeCluster("c", (("a", 1),)), Join("n", (-1, 2), b"x" * 16)])
def test_an_entry_round_trips(command, previous):
    made = authored(command, previous)
    assert decode_entry(made.data) == made.entry
    assert made.entry.digest == command_digest(*encode_command(command))
    by_schema = layout(entries.LOG_ENTRY).decode(made.data[10:], canonical=True)
    assert encode(entries.LOG_ENTRY, by_schema) == made.data


def damaged(data, chance):
    """Return the bytes with one byte changed, some removed, or some inserted."""
    at = chance.randrange(len(data) + 1)
    match chance.randrange(3):
        case 0:
            return (
                data[:at] + bytes([chance.choice([0, 1, 2, 4, 127, 128, 255, chance.randrange(256)])]) + data[at + 1 :]
            )
        case 1:
            return data[:at] + data[at + chance.randrange(1, 20) :]
        case _:
            return data[:at] + chance.randbytes(chance.randrange(1, 12)) + data[at:]


def test_reading_field_by_field_accepts_what_the_schema_accepts():
    """The fast reader and the schema reader accept the same bytes. The schema reader supplies the error message."""
    chance = random.Random(18)
    whole = [authored(Noop()).data, authored(Join("n", (-1, 2), b"x" * 16), None).data]
    whole.append(author_entry(CLUSTER, STATE, None, REQUEST, -(2**63), "ä€😀" * 30, 2**63 - 1, Noop()).data)
    accepted = 0
    for number in range(12_000):
        data = whole[number % 3]
        for _ in range(number % 4):
            data = damaged(data, chance)
        by_schema = entries._refused(data)
        found = entries._read(data)
        assert found == (None if isinstance(by_schema, UnreadableEntry) else by_schema), data.hex()
        accepted += found is not None
    assert 3_300 < accepted < 11_000


def test_an_author_and_a_reader_have_the_same_entry():
    """The chain covers the bytes, so an author that decides on its own entry must have them, too."""
    made = authored(Noop())
    assert made.entry == decode_entry(made.data) == entries._refused(made.data)
    assert made.entry.data == made.data


def test_every_command_class_has_a_schema_of_its_version():
    schemas = {s.name: s.json[VERSION] for s in current().values() if s.family == "commands"}
    assert schemas == VERSIONS
    assert sorted(schemas) == sorted(COMMANDS)


@pytest.mark.parametrize("field", range(4))
def test_an_invalid_uuid_is_not_encoded(field):
    ids = [CLUSTER, STATE, BEFORE, REQUEST]
    ids[field] = "head"
    with pytest.raises(WireError, match="bad_uuid: 'head'"):
        author_entry(*ids, 7, "me", 1, Noop())


@pytest.mark.parametrize("rest", [(2**63, "me", 1), ("7", "me", 1), (7, None, 1), (7, "\ud800", 1), (7, "me", 1.5)])
def test_an_entry_with_a_value_of_another_type_is_not_written(rest):
    with pytest.raises(WireError, match=r"not_encodable: ringlog\.log\.LogEntry"):
        author_entry(CLUSTER, STATE, BEFORE, REQUEST, *rest, Noop())


def test_a_command_with_a_value_of_another_type_is_not_written():
    with pytest.raises(WireError, match=r"not_encodable: ringlog\.commands\.Join"):
        authored(Join("n", ("1",), b""))


def entry_with(kind, version, payload):
    made = authored(Noop()).entry
    changed = Entry(
        made.cluster_id,
        made.state_id,
        made.prev_state_id,
        made.request_id,
        made.since_epoch,
        made.submitter,
        made.at,
        kind,
        version,
        made.digest,
        made.command,
    )
    return decode_entry(encode_entry(changed, payload))


@pytest.mark.parametrize(("kind", "version"), [("MergeClusters", 1), ("Join", 2), ("Join", 0), ("", 1), ("Join", -1)])
def test_a_kind_or_version_of_another_release_is_unknown(kind, version):
    entry = entry_with(kind, version, b"whatever")
    assert entry.command == UnknownCommand(kind, version)
    assert entry.digest == command_digest(kind, version, b"whatever")


@pytest.mark.parametrize("payload", [b"", b"\x02", b"\x02n\x02\x02", b"\xff" * 40])
def test_an_invalid_payload_is_undecodable(payload):
    entry = entry_with("Join", 1, payload)
    assert isinstance(entry.command, Undecodable)
    assert "ringlog.commands.Join" in entry.command.detail


def test_a_payload_with_bytes_behind_it_is_undecodable():
    _, _, payload = encode_command(Join("n", (1,), b""))
    found = decode_command("Join", 1, payload + b"\x00")
    assert isinstance(found, Undecodable)
    assert "trailing_bytes" in found.detail


def test_a_payload_in_another_encoding_is_undecodable():
    """Equal commands have equal digests only if each command has one encoding."""
    found = decode_command("Join", 1, b"\x02n" + b"\x02\x02\x02\x04\x00" + b"\x00")
    assert isinstance(found, Undecodable)
    assert "not_canonical" in found.detail


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "not_single_object"),
        (b"\xc3\x01", "not_single_object"),
        (b"\x00" * 40, "not_single_object"),
        (b"\xc3\x01" + b"\x00" * 40, "unknown_fingerprint"),
        (authored(Noop()).data[:-1], "not_decodable"),
        (authored(Noop()).data + b"\x00", "trailing_bytes"),
        (authored(Noop()).data[:10], "not_decodable"),
    ],
)
def test_invalid_entry_bytes_are_unreadable(data, word):
    found = decode_entry(data)
    assert isinstance(found, UnreadableEntry)
    assert word in found.detail


def test_another_record_on_the_log_is_unreadable():
    status = {"role": "r", "instance": "i", "term": 1, "epoch": 2, "state": "active", "at": 3}
    status |= {"refused": [], "why": "", "release": "1"}
    assert isinstance(decode_entry(encode("ringlog.agents.AgentStatus", status)), UnreadableEntry)


# Cached ids and commands equal the recomputed values, and the caches are bounded.


@given(st.binary(min_size=16, max_size=16))
def test_an_id_converts_alike_before_and_after_caching(data: bytes) -> None:
    text = uuid_text(data)
    for _ in range(2):
        assert uncached_id_text(data) == text
        assert id_bytes(text) == data == uuid_bytes(text)
        assert id_text(data) == text


def test_invalid_ids_are_rejected_alike() -> None:
    for text in ("", "x", str(uuid.uuid4()).upper()):
        with pytest.raises(WireError, match="bad_uuid"):
            id_bytes(text)


def test_the_id_cache_is_bounded() -> None:
    for number in range(2 * IDS_CACHED_MAX):
        id_text(number.to_bytes(16, "big"))
        assert len(mapping._texts) <= IDS_CACHED_MAX
        assert len(mapping._bytes) <= IDS_CACHED_MAX


@given(st.sampled_from(("Noop", "CreateKeyspace", "Unheard")), st.integers(0, 3), st.binary(max_size=40))
def test_a_known_command_is_the_decoded_one(kind: str, version: int, payload: bytes) -> None:
    for _ in range(2):
        assert cached_command(kind, version, payload) == (
            command_digest(kind, version, payload),
            decode_command(kind, version, payload),
        )


def test_the_command_cache_is_bounded_and_skips_large_commands() -> None:
    kind, version, payload = encode_command(Noop())
    assert cached_command(kind, version, payload)[1] is cached_command(kind, version, payload)[1]
    before = commands._cached.cache_info()
    assert before.maxsize == CACHED_MAX
    cached_command(kind, version, b"x" * (CACHED_BYTES_MAX + 1))
    assert commands._cached.cache_info() == before


def test_a_large_command_is_not_decoded_for_its_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    kind, version, payload = "Noop", 1, b"x" * (CACHED_BYTES_MAX + 1)
    monkeypatch.setattr(commands, "decode_command", lambda *_: pytest.fail("it is decoded"))
    assert digest_of(kind, version, payload) == command_digest(kind, version, payload)
    kind, version, payload = encode_command(Noop())
    monkeypatch.undo()
    assert digest_of(kind, version, payload) == cached_command(kind, version, payload)[0]
