"""Dead letters on a real broker: lists, counts, and records that are sent again once."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from tests.system.cdc_world import World, write
from typer.testing import CliRunner, Result

from ringlog.cli.main import app
from ringlog.client.cdc import dead_letters
from ringlog.client.cdc.dead_letters import (
    KEYS_MAX,
    OTHERS,
    RESENT,
    DeadLetterReader,
    KeySet,
    LetterCounts,
    LetterFilter,
    LetterSummary,
)
from ringlog.client.cdc.errors import NotResendable, ResendFailed
from ringlog.kernel.ring.murmur3 import compose
from ringlog.kernel.values import replace
from ringlog.log.errors import LogError
from ringlog.runtime.kafka.config import QUIET
from ringlog.wire.records import (
    VALUE_KEPT,
    DeadLetter,
    dead_letter_key,
    encode_dead_letter,
    encode_mutation,
    mutation_key,
    mutation_partition,
)
from ringlog_audit.sources.topics import records

pytestmark = pytest.mark.system

ALL = LetterFilter()
HOSTILE = "shop\x1b]0;title\x07\nforged line"


class Letters:
    """Writes letters as the job does, and runs commands on them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.source = f"{world.cluster}.mutations"
        self.topic = f"{world.cluster}.dead-letters"
        self.producer = Producer({**QUIET, "bootstrap.servers": world.bootstrap, "message.max.bytes": 8 * 2**20})

    def letter(self, number: int, reason: str = "unknown_column", **changes: Any) -> DeadLetter:
        """Return the letter of a write to the key ``k<number>``."""
        mutation = write(
            f"k{number}", number, timestamp=number, mutation_id=None, keyspace=changes.pop("keyspace", "shop")
        )
        key = mutation_key(mutation.keyspace, mutation.table, compose([f"k{number}".encode()]))
        made = DeadLetter(
            reason, f"because of {number}", self.source, 1, number, number, key, encode_mutation(mutation), "job", 7
        )
        return replace(made, **changes)

    def add(self, *letters: DeadLetter, time_ms: int = 0) -> None:
        for one in letters:
            name = dead_letter_key(one.topic, one.partition, one.offset)
            self.producer.produce(self.topic, encode_dead_letter(one), name, 0, timestamp=time_ms)
        assert self.producer.flush(60) == 0

    def run(self, *words: str, expected: int = 0) -> Result:
        place = ["--bootstrap", self.world.bootstrap, "--cluster", self.world.cluster]
        found = CliRunner().invoke(app, ["cdc", "dead-letters", *words, *place])
        assert found.exit_code == expected, found.output
        return found

    def refused(self, *words: str) -> str:
        """Return the error of a command."""
        found = self.run(*words, expected=1)
        return f"{found.exception.code}: {found.exception}" if isinstance(found.exception, LogError) else found.stderr

    def json(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json").stdout)

    def sent(self) -> list[tuple[int, bytes | None, bytes | None]]:
        """Return (partition, key, value) of the committed mutations."""
        found = records(self.world.bootstrap, self.source)
        return [(one.partition() or 0, one.key(), one.value()) for one in found]

    def reader(self) -> DeadLetterReader:
        return DeadLetterReader(self.world.bootstrap, self.world.cluster)


@pytest.fixture
def letters(shop: World) -> Letters:
    return Letters(shop)


def ids(found: list[dict[str, Any]]) -> list[int]:
    return [one["id"] for one in found]


def test_lists_and_counts(letters: Letters, monkeypatch: pytest.MonkeyPatch) -> None:
    """Backward reading over several chunks; a repeated letter counts once; other bytes are skipped in a filter."""
    monkeypatch.setattr(dead_letters, "CHUNK", 3)
    letters.add(*(letters.letter(number) for number in range(5)), time_ms=1_000)
    letters.add(letters.letter(3), letters.letter(4), time_ms=2_000)
    letters.add(letters.letter(7, "null_partition_key"), letters.letter(8, keyspace=HOSTILE), time_ms=3_000)
    letters.producer.produce(letters.topic, b"no letter", b"?", 0, timestamp=3_000)
    letters.producer.flush(60)
    assert ids(letters.json("list")) == [9, 8, 7, 6, 5, 2, 1, 0]
    assert ids(letters.json("list", "--limit", "2")) == [9, 8]
    assert ids(letters.json("list", "--reason", "unknown_column", "--table", "shop.orders")) == [6, 5, 2, 1, 0]
    assert ids(letters.json("list", "--since", "2000000")) == [9, 8, 7, 6, 5]
    assert ids(letters.json("list", "--since", "1970-01-01T00:00:03Z", "--reason", "null_partition_key")) == [7]
    (found,) = letters.json("list", "--reason", "null_partition_key")
    assert found == {
        "id": 7,
        "time": 3_000_000,
        "reason": "null_partition_key",
        "detail": "because of 7",
        "table": "shop.orders",
        "position": f"{letters.source}/1/7",
        "append_time": 7,
        "writer": "job",
        "resent": False,
    }
    counted = letters.json("count")
    assert (counted["letters"], counted["resent"]) == (8, 0)
    assert counted["groups"][0] == {"reason": "unknown_column", "table": "shop.orders", "letters": 5, "resent": 0}
    place = ["--bootstrap", letters.world.bootstrap, "--cluster", letters.world.cluster]
    status = json.loads(CliRunner().invoke(app, ["cdc", "status", "--json", *place]).stdout)
    assert status["recent_dead_letters"] == {"not_a_letter": 1, "null_partition_key": 1, "unknown_column": 3}
    assert "3 unknown_column" in CliRunner().invoke(app, ["cdc", "status", *place]).stdout
    text = letters.run("list").stdout + letters.run("count").stdout + letters.run("show", "8").stdout
    assert "\x1b" not in text
    assert "\nforged" not in text
    assert "null_partition_key  shop.orders" in " ".join(letters.run("list").stdout.split("   ")).replace("   ", "  ")


def test_a_letter_shows_its_original(letters: Letters) -> None:
    letters.add(letters.letter(1), letters.letter(2, "unreadable", value=b"\x00\x1b[2J", key=None))
    found = letters.json("show", "0")
    assert found == letters.json("show", f"{letters.source}/1/1")
    assert found["mutation"]["partition_key"] == {"customer": "k1"}
    assert found["mutation"]["clustering_key"] == {"number": 1}
    assert found["mutation"]["cells"] == {"amount": 7, "note": None}
    assert bytes.fromhex(found["value"]) == letters.letter(1).value
    assert bytes.fromhex(found["key"]) == letters.letter(1).key
    assert 'cells: {"amount": 7, "note": null}' in letters.run("show", "0").stdout
    found = letters.json("show", "1")
    assert (found["mutation"], found["key"], found["value"]) == (None, None, "001b5b324a")
    assert "5 bytes 001b5b324a" in letters.run("show", "1").stdout
    for name in ("2", f"{letters.source}/1/9", "9" * 30, "nothing"):
        assert "unknown_letter" in letters.refused("show", name)


def test_a_record_is_sent_again_once(letters: Letters) -> None:
    """Key and value are unchanged. A second time is refused, and is possible with --again."""
    letters.add(*(letters.letter(number) for number in range(4)), letters.letter(9, "no_generation"))
    assert letters.run("resend", expected=2).stderr.startswith("bad_usage")
    assert "not_confirmed" in letters.refused("resend", "--reason", "unknown_column")
    assert len(letters.json("resend", "--reason", "unknown_column", "--dry-run")["letters"]) == 4
    assert letters.sent() == []
    assert letters.json("resend", "2")["sent"] == 1
    original = letters.letter(2)
    assert original.key is not None
    assert letters.sent() == [(mutation_partition(original.key, 4), original.key, original.value)]
    assert "not_resendable" in letters.refused("resend", "2")
    assert "not_resendable" in letters.refused("resend", f"{letters.source}/1/2")
    found = letters.json("resend", "--table", "shop.orders", "--reason", "unknown_column", "--yes")
    assert (found["sent"], found["already_resent"], ids(found["letters"])) == (3, 1, [0, 1, 3])
    letters.add(letters.letter(3))  # The job repeats its last batch.
    found = letters.json("resend", "--reason", "unknown_column", "--yes")
    assert (found["sent"], found["letters"]) == (0, [])
    assert len(letters.sent()) == 4
    assert {one["id"] for one in letters.json("list") if one["resent"]} >= {0, 1, 2}
    assert [one["resent"] for one in letters.json("list", "--reason", "no_generation")] == [False]
    assert letters.json("count", "--reason", "unknown_column")["letters"] == 4
    assert "resent: yes" in letters.run("show", "1").stdout
    assert letters.json("resend", "2", "--again")["sent"] == 1
    assert len(letters.sent()) == 5
    # A mark is the letter once more: every reader of the topic accepts it.
    marks = [one for one in records(letters.world.bootstrap, letters.topic) if one.headers()]
    assert [one.headers() for one in marks] == [[(RESENT, b"")]] * 5
    assert marks[0].value() == encode_dead_letter(letters.letter(2))


def test_a_limit_takes_the_oldest(letters: Letters) -> None:
    letters.add(*(letters.letter(number) for number in range(5)))
    found = letters.json("resend", "--reason", "unknown_column", "--limit", "2", "--yes")
    assert (ids(found["letters"]), found["more"]) == ([0, 1], True)
    found = letters.json("resend", "--reason", "unknown_column", "--limit", "3", "--yes")
    assert (ids(found["letters"]), found["more"]) == ([2, 3, 4], False)
    assert {value for _, _, value in letters.sent()} == {letters.letter(number).value for number in range(5)}


def test_a_letter_without_its_whole_mutation_is_not_sent(letters: Letters) -> None:
    cut = letters.letter(1, value=b"\0" * VALUE_KEPT, detail="first 3145728 of 4000000 bytes of the value, SHA-256 00")
    event = letters.letter(2, "bad_value", topic="inventory", writer="import one")
    letters.add(cut, event)
    for name in ("0", "1"):
        assert "not_resendable" in letters.refused("resend", name)
    found = letters.json("resend", "--since", "0", "--reason", "bad_value", "--reason", "unknown_column", "--yes")
    assert (found["sent"], found["not_resendable"]) == (0, 2)
    with closing(letters.reader()) as reader, pytest.raises(NotResendable):
        reader.resend([reader.find("0").summary], False, lambda _: None)
    assert letters.sent() == []


class DiesBeforeCommit(Producer):
    """A producer whose process dies before the commit: the transaction stays open."""

    def commit_transaction(self, *_: Any) -> None:
        self.flush()
        raise SystemExit

    def abort_transaction(self, *_: Any) -> None:
        """Do nothing: a dead process aborts nothing."""


def test_a_kill_and_a_second_process_send_nothing_twice(letters: Letters, monkeypatch: pytest.MonkeyPatch) -> None:
    letters.add(*(letters.letter(number) for number in range(3)))
    with closing(letters.reader()) as reader:
        chosen = reader.choose(ALL, 10).letters
        with monkeypatch.context() as patched:
            patched.setattr(dead_letters, "Producer", DiesBeforeCommit)
            with pytest.raises(SystemExit):
                reader.resend(chosen, False, lambda _: None)
        assert letters.sent() == []
        # Both processes chose the same letters. The later one sees the marks of the earlier one.
        assert reader.resend(chosen, False, lambda _: None) == (3, 0)
        assert reader.resend(chosen, False, lambda _: None) == (0, 3)
    assert len(letters.sent()) == 3


def test_a_later_process_fences_an_earlier_one(letters: Letters, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "BATCH", 1)
    letters.add(*(letters.letter(number) for number in range(3)))
    with closing(letters.reader()) as first, closing(letters.reader()) as second:
        chosen = first.choose(ALL, 10).letters
        reported: list[LetterSummary] = []

        def overtaken(found: LetterSummary) -> None:
            reported.append(found)
            assert second.resend(chosen, False, lambda _: None) == (2, 1)

        with pytest.raises(ResendFailed):
            first.resend(chosen, False, overtaken)
    assert reported == [chosen[0]]
    assert len(letters.sent()) == 3


def test_sets_and_groups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "KEYS_MAX", 3)
    monkeypatch.setattr(dead_letters, "GROUPS_MAX", 2)
    keys = KeySet()
    assert [keys.add(name) for name in "abab"] == [True, True, False, False]
    assert [keys.add(name) for name in "cda"] == [True, True, True]
    assert KEYS_MAX > 10_000
    counts = LetterCounts()
    for table in "xyzzx":
        counts.add(LetterSummary(0, 0, "r", "", table, "t/0/0", 0, "w"))
    assert counts.letters == {("r", "x"): 2, ("r", "y"): 1, (OTHERS, OTHERS): 2}
    assert counts.by_reason() == {OTHERS: 2, "r": 3}


def test_a_rejected_transaction_is_a_typed_error(letters: Letters, monkeypatch: pytest.MonkeyPatch) -> None:
    class Rejects(Producer):
        def commit_transaction(self, *_: Any) -> None:
            raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "not allowed"))

    letters.add(letters.letter(0))
    monkeypatch.setattr(dead_letters, "Producer", Rejects)
    assert "resend_failed: not allowed" in letters.refused("resend", "0")
    assert letters.sent() == []
