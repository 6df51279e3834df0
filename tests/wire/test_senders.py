"""The text that names the sender of an entry: its parts, its bounds, and that it controls no terminal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ringlog import __version__
from ringlog.log.author import this_sender
from ringlog.wire.senders import SENDER_BYTES_MAX, EntrySender, bounded, parsed_sender

NAMES = st.from_regex(r"[A-Za-z0-9_.-]{1,100}", fullmatch=True)
WORDS = st.text(st.characters(categories=("L", "N", "P")), max_size=20)
PERSONS = st.text(st.characters(categories=("L", "N", "P", "Zs")), max_size=40)


@given(NAMES, WORDS, WORDS, PERSONS)
def test_a_text_has_the_parts_of_its_sender(name: str, host: str, client: str, person: str) -> None:
    sender = EntrySender(name, host, client, person)
    assert parsed_sender(str(sender)) == sender


@given(st.text(max_size=2_000) | st.text(st.sampled_from("a= host=client=on_behalf=\x1b\n\ud800€"), max_size=2_000))
def test_any_text_becomes_printable_and_short(text: str) -> None:
    found = bounded(text)
    assert found.isprintable()
    assert len(found.encode()) <= SENDER_BYTES_MAX
    assert parsed_sender(bounded(text, "ops")).name == "ops"


def test_a_text_without_parts_is_a_name() -> None:
    assert parsed_sender("cli") == EntrySender("cli")
    assert bounded("somebody-else@head-office") == "somebody-else@head-office"


def test_this_process_names_its_machine_its_release_and_the_person() -> None:
    found = parsed_sender(this_sender("cli", "Bob Smith"))
    assert (found.name, found.client, found.on_behalf) == ("cli", f"ringlog/{__version__}", "Bob Smith")
    assert found.host
