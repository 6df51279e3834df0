"""What an author foresaw of its entries is what the log makes of them, and is believed only there."""

from __future__ import annotations

from ringlog.kernel.commands.cluster import ChangeSettings, Noop
from ringlog.kernel.values import Command
from ringlog.log.folding import FORESEEN_MAX, Foreseen, follow
from ringlog.log.port import LogRecord
from ringlog.wire.entries import EncodedEntry
from tests.agents.world import World


def sent(world: World, foreseen: Foreseen, *commands: Command) -> list[EncodedEntry]:
    """A chain of entries that are decided, and not yet in the log of ``world``."""
    head, chain = world.state, []
    for command in commands:
        encoded = world.entry(command)
        chain.append(encoded)
        world.state = foreseen.fold(world.state, encoded).state
    world.state = head
    return chain


def records(chain: list[EncodedEntry]) -> list[LogRecord]:
    return [LogRecord(offset, encoded.data) for offset, encoded in enumerate(chain)]


def test_what_is_read_as_it_was_foreseen_is_not_folded_again() -> None:
    world, foreseen = World(), Foreseen()
    chain = sent(world, foreseen, Noop(), ChangeSettings((("history_entries", 5_000),)), Noop())
    plain = list(follow(records(chain), world.state))
    quick = list(follow(records(chain), world.state, foreseen.judge))
    assert plain == quick
    assert [made.item for made in quick] == [encoded.entry for encoded in chain]
    assert all(quick[0].item is not made.item for made in plain)
    assert quick[0].item is chain[0].entry, "it was not decoded"
    assert foreseen.take(world.state, chain[0].data) is None, "it is forgotten"


def test_an_entry_between_them_is_folded_as_what_it_is() -> None:
    """The first of the chain is lost to another author's entry: all of it is stale, whatever was foreseen."""
    world, foreseen = World(), Foreseen()
    chain = sent(world, foreseen, Noop(), Noop())
    other = world.entry(ChangeSettings((("history_entries", 5_000),)))
    log = records([other, *chain])
    quick = list(follow(log, world.state, foreseen.judge))
    assert quick == list(follow(log, world.state))
    assert [made.outcome.kind.value for made in quick] == ["applied", "stale", "stale"]


def test_an_equal_state_that_is_another_object_is_folded() -> None:
    world, foreseen = World(), Foreseen()
    chain = sent(world, foreseen, Noop())
    first = next(follow(records(chain), World().state, foreseen.judge))
    assert first.item is not chain[0].entry


def test_what_never_comes_is_not_kept_for_ever() -> None:
    world, foreseen = World(), Foreseen()
    for _ in range(FORESEEN_MAX):
        foreseen.fold(world.state, world.entry(Noop()))
    late = world.entry(Noop())
    foreseen.fold(world.state, late)
    assert len(foreseen._made) == 1
    assert foreseen.take(world.state, late.data) is not None
