"""A linearizability search for any register, by Wing, Gong (1993) and Lowe (2017).

An operation takes effect before its return. So the search goes from return to return. A configuration is (number of
passed returns, the register's value, the open operations that have taken effect). Each is visited once. Slots of
finished operations are reused, so the set of open operations is a small integer for a history of any length.

Three reductions keep the search small. Each only reorders operations and changes no answer:
- an observer (a read, or a swap that found another value) takes effect as soon as the value fits;
- of equal open operations, the one with the earliest return takes effect first;
- an operation of unknown outcome takes effect only if it changes the value, and is dropped if no operation observes it.

The search is exhaustive up to ``limit`` configurations. The problem is NP-complete, so some histories are beyond it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

from ringlog.kernel.values import Value
from ringlog_testing.histories.events import Op, Type
from ringlog_testing.histories.operations import ClientOperation
from ringlog_testing.histories.verdict import KeyVerdict, Linearizability
from ringlog_testing.histories.zones import NEVER, Name, name_of

ANY = -1
"""The expected value of an operation that takes effect with any register value."""

Configuration: TypeAlias = tuple[int, int, int]
"""Passed returns, value, open operations that have taken effect."""


class _Effect(NamedTuple):
    """A compiled operation. Values are numbers. ``new`` is None for an observer.

    An observer needs the value ``expected``, or with ``is_other`` any other value.
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


class _Round(Value):
    """The open operations when an operation returns. ``bit``: that operation. ``wish``: the value that it
    read, if any.
    """

    line: int
    bit: int
    wish: int | None
    writers: tuple[_Writer, ...]
    readers: dict[int, int]
    others: tuple[tuple[int, int], ...]


def decide(operations: tuple[ClientOperation, ...], limit: int) -> KeyVerdict:
    """Return whether one order explains the operations, which are sorted by invoke.

    ``line`` of a negative decision is the first return that no order explains.
    """
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
    """Apply all observers that fit the value, and pass the returns that need nothing else."""
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
    """Return the configurations after one more effect, the most promising one last."""
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
    """Return effects in order of invokes, without those that change and observe nothing."""
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
    # A swap that found another value may depend on any change of the value.
    if any(one.is_other for one in effects):
        return effects
    looked_at = {one.expected for one in effects}
    return [one for one in effects if one.is_sure or one.new in looked_at]


def _rounds(effects: list[_Effect]) -> Iterator[_Round]:
    """Yield a round for each return, in order."""
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
