"""Generators of histories: written by hand, random, and recorded from processes on a real object."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from ringlog_testing.histories.events import Event, Op, event_of
from ringlog_testing.histories.operations import ClientOperation, OperationHistory, pair

Line = dict[str, Any]


def line(process: str, kind: str, op: str, value: Any = ..., key: str = "k") -> Line:
    """Return an event as the object of its line."""
    found = {"process": process, "type": kind, "op": op, "key": key}
    return found if value is ... else {**found, "value": value}


def events_of(text: str, key: str = "k") -> list[Line]:
    """Return events from rows of ``process type op [value]`` with JSON values."""
    found = []
    for row in text.strip().splitlines():
        process, kind, op, *value = row.split(maxsplit=3)
        found.append(line(process, kind, op, json.loads(value[0]) if value else ..., key))
    return found


def history(lines: list[Line]) -> OperationHistory:
    """Return the operations of events."""
    return pair(events(lines))


def events(lines: list[Line]) -> list[Event]:
    return [event_of(one, number) for number, one in enumerate(lines, start=1)]


def operations(lines: list[Line]) -> tuple[ClientOperation, ...]:
    """Return the operations of events with one key."""
    ((_, found),) = history(lines).keys
    return found


def text_of(lines: list[Line]) -> str:
    """Return the file with these events."""
    return "".join(json.dumps(one) + "\n" for one in lines)


def random_small(rng: Random, key: str) -> list[Line]:
    """Return up to six overlapping operations with random answers, right or wrong."""
    make = _random_log if rng.random() < 0.4 else _random_register
    count = rng.randint(1, 6)
    marks = [number for number in range(count) for _ in range(2)]
    rng.shuffle(marks)
    if rng.random() < 0.3:
        marks.sort()
    made: dict[int, tuple[Line, Line | None]] = {}
    for number in range(count):
        op, asked, answer = make(rng)
        process = f"p{number}"
        fate = rng.choices(["ok", "info", "fail", None], [14, 3, 1, 1])[0]
        ended = None if fate is None else line(process, fate, op, answer if fate == "ok" else None, key)
        made[number] = line(process, "invoke", op, asked, key), ended
    found: list[Line] = []
    for number in marks:
        begun, ended = made[number]
        is_begun = begun in found
        found += [begun] if not is_begun else [] if ended is None else [ended]
    if make is _random_log and rng.random() < 0.6:
        found += _random_whole(rng, key, found)
    return found


def _random_register(rng: Random) -> tuple[str, Any, Any]:
    values = [None, 1, 2]
    op = rng.choice(["read", "write", "write", "cas"])
    if op == "read":
        return op, None, rng.choice(values)
    if op == "write":
        return op, rng.choice([1, 2, 3]), None
    return op, [rng.choice(values), rng.choice(values)], rng.random() < 0.6


def _random_log(rng: Random) -> tuple[str, Any, Any]:
    if rng.random() < 0.4:
        return "barrier", None, rng.randint(0, 4)
    return "commit", f"r{rng.randint(0, 5)}", rng.randint(1, 5)


def _random_whole(rng: Random, key: str, lines: list[Line]) -> list[Line]:
    """Return a read of the whole log that mostly fits the answers."""
    answers = {}
    asked = {one["process"]: one.get("value") for one in lines if one["type"] == "invoke" and one["op"] == "commit"}
    for one in lines:
        if one["op"] == "commit" and one["type"] == "ok":
            answers[asked[one["process"]]] = one["value"]
    for request in asked.values():
        if request not in answers and rng.random() < 0.3:
            answers[request] = rng.randint(1, 6)
    if answers and rng.random() < 0.15:
        del answers[rng.choice(sorted(answers))]
    whole = sorted(([request, epoch] for request, epoch in answers.items()), key=lambda one: one[1])
    return [line("end", "invoke", "applied", None, key), line("end", "ok", "applied", whole, key)]


def run(rng: Random, processes: int, count: int, ask: Callable[[Random, int], tuple[Op, Any]], key: str) -> list[Line]:
    """Run processes on one object; each operation takes effect at a random moment between its two lines.

    ``ask`` returns operation and value for an operation's number. Some answers get lost, with or without the effect.
    """
    found: list[tuple[float, int, Line]] = []
    effects: list[tuple[float, int, Op, Any]] = []
    answered: dict[int, tuple[str, float]] = {}
    clock = [0.0] * processes
    for number in range(count):
        process = rng.randrange(processes)
        op, value = ask(rng, number)
        begin = clock[process] + rng.random()
        effect = begin + rng.random() * 3
        end = effect + rng.random() * 3
        clock[process] = end
        name = f"p{process}"
        found.append((begin, number, line(name, "invoke", op, value, key)))
        if rng.random() < 0.05:
            name, end = f"{name}-lost-{number}", end + 50
            found[-1][2]["process"] = name
            answered[number] = (name, -1.0)
            if rng.random() < 0.5:
                effects.append((end, number, op, value))
            continue
        answered[number] = (name, end)
        effects.append((effect, number, op, value))
    state: Any = None if ask is not ask_log else 0
    for _, number, op, value in sorted(effects, key=lambda one: one[:2]):
        state, answer = apply(state, op, value)
        name, end = answered[number]
        if end >= 0:
            found.append((end, number, line(name, "ok", op, answer, key)))
    return [one for _, _, one in sorted(found, key=lambda one: one[:2])]


def apply(state: Any, op: Op, value: Any) -> tuple[Any, Any]:
    """Return the next state and the answer of a correct object."""
    if op is Op.READ:
        return state, state
    if op is Op.WRITE:
        return value, None
    if op is Op.CAS:
        swaps = (type(state), state) == (type(value[0]), value[0])
        return (value[1], True) if swaps else (state, False)
    if op is Op.COMMIT:
        return state + 1, state + 1
    return state, state


def ask_different(rng: Random, number: int) -> tuple[Op, Any]:
    """Return reads, and writes of different values."""
    return (Op.READ, None) if rng.random() < 0.5 else (Op.WRITE, number)


def ask_anything(rng: Random, number: int) -> tuple[Op, Any]:
    """Return reads, writes and swaps of few values."""
    values = [None, 0, 1, "a", True]
    op = rng.choice([Op.READ, Op.READ, Op.WRITE, Op.CAS])
    if op is Op.CAS:
        return op, [rng.choice(values), rng.choice(values)]
    return op, rng.choice(values) if op is Op.WRITE else None


def ask_log(rng: Random, number: int) -> tuple[Op, Any]:
    """Return commits and barriers."""
    return (Op.BARRIER, None) if rng.random() < 0.4 else (Op.COMMIT, f"r{number}")
