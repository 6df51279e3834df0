"""The literal definition of linearizability: every order of a few operations, applied to the object.

It uses no shortcut of the real checkers. An operation may be next if no remaining operation returned before its
invocation. An operation with an unknown outcome may be omitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ringlog_testing.histories.events import Op, Type
from ringlog_testing.histories.operations import ClientOperation, is_register

EPOCHS = range(1, 9)


def is_linearizable(operations: tuple[ClientOperation, ...]) -> bool:
    """Return whether a valid order exists."""
    if is_register(operations):
        return _place(None, [one for one in operations if one.type is not Type.FAIL], _register)
    failed = {one.asked for one in operations if one.type is Type.FAIL and one.op is Op.COMMIT}
    kept = [one for one in operations if one.type is not Type.FAIL]
    known = {one.asked for one in operations if one.op is Op.COMMIT}

    def step(state: Any, one: ClientOperation) -> Iterator[Any]:
        for found in _log(state, one, known):
            if not failed & {request for request, _ in found[1]}:
                yield found

    return _place((0, frozenset()), kept, step)


def _place(state: Any, rest: list[ClientOperation], step: Any) -> bool:
    if all(one.type is Type.INFO for one in rest):
        return True
    for one in rest:
        others = [other for other in rest if other is not one]
        if any(other.returned is not None and other.returned < one.invoked for other in others):
            continue
        if any(_place(found, others, step) for found in step(state, one)):
            return True
    return False


def _register(state: Any, one: ClientOperation) -> Iterator[Any]:
    is_known = one.type is Type.OK
    if one.op is Op.WRITE:
        yield one.asked
    elif one.op is Op.READ:
        if not is_known or _same(state, one.answer):
            yield state
    else:
        assert isinstance(one.asked, tuple)
        swaps = _same(state, one.asked[0])
        if not is_known or one.answer is swaps:
            yield one.asked[1] if swaps else state


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one == other


def _log(state: Any, one: ClientOperation, known: set[Any]) -> Iterator[Any]:
    """Yield the next states; a state is the epoch and the requests of the history with their applied epochs."""
    epoch, done = state
    if one.op is Op.COMMIT:
        before = dict(done)
        if one.asked in before:
            if one.type is Type.INFO or before[one.asked] == one.answer:
                yield state
            return
        for new in EPOCHS if one.type is Type.INFO else [one.answer]:
            if new > epoch:
                yield new, done | {(one.asked, new)}
    elif one.type is Type.INFO:
        yield state
    elif one.op is Op.BARRIER:
        if one.answer >= epoch:
            yield one.answer, done
    else:
        assert isinstance(one.answer, tuple)
        requests = [entry[0] for entry in one.answer]
        epochs = [entry[1] for entry in one.answer]
        rises = all(former < latter for former, latter in zip([0, *epochs], epochs, strict=False))
        ours = frozenset(entry for entry in one.answer if entry[0] in known)
        last = max(epochs, default=0)
        if rises and len(set(requests)) == len(requests) and ours == done and last >= epoch:
            yield last, done
