"""What is remembered of ids and commands is what is worked out anew, and never more than a bound."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlog.kernel.commands.cluster import Noop
from ringlog.kernel.encoding import command_digest
from ringlog.wire import commands, mapping
from ringlog.wire.commands import KNOWN_BYTES_MAX, KNOWN_MAX, decode_command, digest_of, encode_command, known_command
from ringlog.wire.errors import WireError
from ringlog.wire.mapping import MET_MAX, id_bytes, id_text, met_text, uuid_bytes, uuid_text


@given(st.binary(min_size=16, max_size=16))
def test_an_id_is_the_same_both_ways_before_and_after_it_was_met(data: bytes) -> None:
    text = uuid_text(data)
    for _ in range(2):
        assert met_text(data) == text
        assert id_bytes(text) == data == uuid_bytes(text)
        assert id_text(data) == text


def test_what_is_no_id_is_refused_as_before() -> None:
    for text in ("", "x", str(uuid.uuid4()).upper()):
        with pytest.raises(WireError, match="bad_uuid"):
            id_bytes(text)


def test_ids_that_were_met_are_bounded() -> None:
    for number in range(2 * MET_MAX):
        id_text(number.to_bytes(16, "big"))
        assert len(mapping._texts) <= MET_MAX
        assert len(mapping._bytes) <= MET_MAX


@given(st.sampled_from(("Noop", "CreateKeyspace", "Unheard")), st.integers(0, 3), st.binary(max_size=40))
def test_a_known_command_is_the_decoded_one(kind: str, version: int, payload: bytes) -> None:
    for _ in range(2):
        assert known_command(kind, version, payload) == (
            command_digest(kind, version, payload),
            decode_command(kind, version, payload),
        )


def test_large_commands_are_not_remembered_and_small_ones_are_bounded() -> None:
    kind, version, payload = encode_command(Noop())
    assert known_command(kind, version, payload)[1] is known_command(kind, version, payload)[1]
    before = commands._known.cache_info()
    assert before.maxsize == KNOWN_MAX
    known_command(kind, version, b"x" * (KNOWN_BYTES_MAX + 1))
    assert commands._known.cache_info() == before


def test_a_large_command_is_not_decoded_for_its_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    kind, version, payload = "Noop", 1, b"x" * (KNOWN_BYTES_MAX + 1)
    monkeypatch.setattr(commands, "decode_command", lambda *_: pytest.fail("it is decoded"))
    assert digest_of(kind, version, payload) == command_digest(kind, version, payload)
    kind, version, payload = encode_command(Noop())
    monkeypatch.undo()
    assert digest_of(kind, version, payload) == known_command(kind, version, payload)[0]
