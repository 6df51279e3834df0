"""Registers of any kind: a search for one order that explains every answer, by Wing, Gong (1993) and Lowe (2017).

An operation must take effect before its return. So we go from return to return: a configuration is (how many returns
are behind us, the register's value, which open operations have taken effect), and each is visited once. Open
operations have slots that are given out anew, so the set is a small integer however long the history is.

What keeps the search small, each by an exchange of places that changes no answer:
- what only observes (a read, a swap that found another value) takes effect as soon as the value fits;
- of open operations that do the same, the one that must return first goes first;
- one of unknown outcome takes effect only where it changes the value, and is left out where nothing looks at that.

The search is exhaustive up to ``limit`` configurations; the problem is NP-complete, so there are histories beyond it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from ringlog_testing.histories.events import Op, Type
from ringlog_testing.histories.operations import ClientOperation
from ringlog_testing.histories.verdict import KeyVerdict, Linearizability
from ringlog_testing.histories.zones import NEVER, Name, name_of

ANY = -1
"""In place of the expected value: an effect whatever the register holds."""

Configuration: TypeAlias = tuple[int, int, int]
"""Returns behind us, value, open operations that have taken effect."""


class _Effect(NamedTuple):
    """An operation, compiled: values are numbers. ``new`` is None for what only observes.

    An observer of ``expected`` wants that value, or with ``is_other`` any but that.
    """

    invoked: int
    returned: int
    expected: int
    new: int | None
    is_other: bool = False
    is_sure: bool = True


class _Writer(NamedTuple):
    """An open operation that changes the value."""

    bit: int
    expected: int
    new: int
    is_sure: bool


@dataclass(frozen=True, slots=True)
class _Round:
    """What is open when an operation returns. ``bit`` is its own, ``wish`` the value that it read, if it is a read."""

    line: int
    bit: int
    wish: int | None
    writers: tuple[_Writer, ...]
    readers: dict[int, int]
    others: tuple[tuple[int, int], ...]


def decide(operations: tuple[ClientOperation, ...], limit: int) -> KeyVerdict:
    """Whether one order explains the operations, sorted by invoke; ``line`` is the first return that none explains."""
    rounds = list(_rounds(_compile(operations)))
    seen: set[Configuration] = set()
    stack: list[Configuration] = [(0, 0, 0)]
    furthest = 0
    while stack:
        place, value, done = _observe(rounds, *stack.pop())
        if place == len(rounds):
            return KeyVerdict(Linearizability.LINEARIZABLE, configurations=len(seen))
        if (place, value, done) in seen:
            continue
        if len(seen) >= limit:
            return KeyVerdict(Linearizability.UNDECIDED, configurations=len(seen))
        seen.add((place, value, done))
        furthest = max(furthest, place)
        stack += _next(rounds[place], place, value, done)
    return KeyVerdict(Linearizability.NOT_LINEARIZABLE, line=rounds[furthest].line, configurations=len(seen))


def _observe(rounds: list[_Round], place: int, value: int, done: int) -> Configuration:
    """Lets everything that only observes take effect where it can, and passes the returns that need nothing else."""
    while place < len(rounds):
        now = rounds[place]
        done |= now.readers.get(value, 0)
        for bit, unwanted in now.others:
            if unwanted != value:
                done |= bit
        if not done & now.bit:
            break
        done &= ~now.bit
        place += 1
    return place, value, done


def _next(now: _Round, place: int, value: int, done: int) -> list[Configuration]:
    """The configurations one effect further, the most promising last."""
    found: list[Configuration] = []
    best: Configuration | None = None
    tried: set[tuple[int, int]] = set()
    for bit, expected, new, is_sure in now.writers:
        if done & bit or expected not in (ANY, value) or (expected, new) in tried:
            continue
        tried.add((expected, new))
        if not is_sure and new == value:
            continue
        following = (place, new, done | bit)
        if best is None and (bit == now.bit or new == now.wish):
            best = following
        else:
            found.append(following)
    found.reverse()
    return found if best is None else [*found, best]


def _compile(operations: tuple[ClientOperation, ...]) -> list[_Effect]:
    """Effects in order of invokes, without those that change nothing and tell nothing."""
    numbers: dict[Name, int] = {name_of(None): 0}
    effects = []
    for one in operations:
        if one.type is Type.FAIL or (one.type is Type.INFO and one.op is Op.READ):
            continue
        is_sure = one.returned is not None
        returned = NEVER if one.returned is None else one.returned
        asked: tuple[Any, ...] = one.asked if isinstance(one.asked, tuple) else (one.asked,)
        named = [numbers.setdefault(name_of(value), len(numbers)) for value in asked if one.op is not Op.READ]
        if one.op is Op.READ:
            wanted = numbers.setdefault(name_of(one.answer), len(numbers))
            effects.append(_Effect(one.invoked, returned, wanted, None))
        elif one.op is Op.WRITE:
            effects.append(_Effect(one.invoked, returned, ANY, named[0], is_sure=is_sure))
        elif one.answer is False:
            effects.append(_Effect(one.invoked, returned, named[0], None, is_other=True))
        else:
            effects.append(_Effect(one.invoked, returned, named[0], named[1], is_sure=is_sure))
    # Any change of value may serve one that found another value than it expected.
    if any(one.is_other for one in effects):
        return effects
    looked_at = {one.expected for one in effects}
    return [one for one in effects if one.is_sure or one.new in looked_at]


def _rounds(effects: list[_Effect]) -> Iterator[_Round]:
    """A round for each return, in order."""
    returns = sorted((one for one in effects if one.returned != NEVER), key=lambda one: one.returned)
    bits: dict[_Effect, int] = {}
    free: list[int] = []
    invoked = width = 0
    for one in returns:
        while invoked < len(effects) and effects[invoked].invoked < one.returned:
            if not free:
                free.append(1 << width)
                width += 1
            bits[effects[invoked]] = free.pop()
            invoked += 1
        yield _round(one, bits)
        free.append(bits.pop(one))


def _round(one: _Effect, bits: dict[_Effect, int]) -> _Round:
    writers, others = [], []
    readers: dict[int, int] = {}
    for effect, bit in sorted(bits.items(), key=lambda item: item[0].returned):
        if effect.new is not None:
            writers.append(_Writer(bit, effect.expected, effect.new, effect.is_sure))
        elif effect.is_other:
            others.append((bit, effect.expected))
        else:
            readers[effect.expected] = readers.get(effect.expected, 0) | bit
    wish = one.expected if one.new is None and not one.is_other else None
    return _Round(one.returned, bits[one], wish, tuple(writers), readers, tuple(others))
