"""The metadata log as a linearizable object: commits receive epochs and barriers read them.

In the model, the log's state is its epoch. A commit raises it, by more than one if other clients commit too. A barrier
reads it. Epochs determine the order, so no search is necessary: sort by epoch, commits before the barriers that saw
them. The order explains the history if and only if, for each operation that returned before another was invoked,

    the other is a commit     its epoch is greater than the first one's
    the other is a barrier    its epoch is not smaller

Several commits with one request id are attempts at one effect. It begins with the first attempt and is known with the
first answer. Their epochs are equal, and if one was answered ``fail``, none is answered ``ok``. A commit of unknown
outcome constrains nothing, unless the whole log was read at the end (``applied``). Then the log contains every answered
epoch and no ``fail``, its epochs rise, and it contains no request twice. A commit of unknown outcome that it contains
took effect at that epoch, at some time after its invoke. Agents also commit, so the log may have more entries than the
history.
"""

from __future__ import annotations

from collections.abc import Iterable

from ringlog.kernel.values import Value
from ringlog_testing.histories.events import Op, Type
from ringlog_testing.histories.operations import ClientOperation
from ringlog_testing.histories.verdict import KeyVerdict, Linearizability


class _Point(Value):
    """An effect with its epoch, between two lines. ``returner`` is the operation that revealed it."""

    epoch: int
    is_commit: bool
    invoked: int
    returned: int
    invoker: ClientOperation
    returner: ClientOperation


def decide(operations: tuple[ClientOperation, ...]) -> KeyVerdict:
    """Return whether one order explains the operations, which are sorted by invoke."""
    whole = next((one for one in operations if one.op is Op.APPLIED and one.type is Type.OK), None)
    requests: dict[object, list[ClientOperation]] = {}
    for one in operations:
        if one.op is Op.COMMIT:
            requests.setdefault(one.asked, []).append(one)
    wrong: list[KeyVerdict] = []
    points = [
        _Point(_epoch(one), False, one.invoked, one.returned, one, one)
        for one in operations
        if one.op is Op.BARRIER and one.type is Type.OK and one.returned is not None
    ]
    epochs = _whole(whole, wrong)
    for attempts in requests.values():
        wrong += _answers(attempts)
        points += _points(attempts, whole, epochs)
    if whole is not None and whole.returned is not None:
        wrong += _against(operations, whole, epochs)
        points.append(_Point(max(epochs.values(), default=0), False, whole.invoked, whole.returned, whole, whole))
    wrong += _sweep(points)
    return min(wrong, key=lambda one: one.line, default=KeyVerdict(Linearizability.LINEARIZABLE))


def _epoch(one: ClientOperation) -> int:
    assert isinstance(one.answer, int), "an answered commit or barrier has an epoch"
    return one.answer


def _points(attempts: list[ClientOperation], whole: ClientOperation | None, epochs: dict[str, int]) -> Iterable[_Point]:
    """Yield the effect of a request, if its epoch is known."""
    answered = [one for one in attempts if one.type is Type.OK and one.returned is not None]
    first = min(answered, key=lambda one: one.returned or 0, default=None)
    if first is not None and first.returned is not None:
        yield _Point(_epoch(first), True, attempts[0].invoked, first.returned, attempts[0], first)
    elif whole is not None and whole.returned is not None and attempts[0].asked in epochs:
        epoch = epochs[str(attempts[0].asked)]
        yield _Point(epoch, True, attempts[0].invoked, whole.returned, attempts[0], whole)


def _answers(attempts: list[ClientOperation]) -> Iterable[KeyVerdict]:
    """Yield contradictions between the answers to one request, each with its line."""
    known: ClientOperation | None = None
    for one in sorted(attempts, key=lambda one: one.returned or 0):
        if one.returned is None:
            continue
        if known is None:
            known = one
        elif one.type is not known.type:
            yield _no("a request was answered ok and fail", one.returned, known, one)
        elif one.type is Type.OK and one.answer != known.answer:
            yield _no("a request was answered with two epochs", one.returned, known, one)


def _whole(whole: ClientOperation | None, wrong: list[KeyVerdict]) -> dict[str, int]:
    """Return epochs by request id in the whole log. Add contradictions within the log to ``wrong``."""
    epochs: dict[str, int] = {}
    if whole is None or whole.returned is None or not isinstance(whole.answer, tuple):
        return epochs
    last = 0
    for entry in whole.answer:
        assert isinstance(entry, tuple), "a reading of the whole log consists of pairs"
        request, epoch = entry
        if request in epochs:
            wrong.append(_no(f"request {request} was applied twice", whole.returned, whole))
        if epoch <= last:
            wrong.append(_no(f"the log has epoch {epoch} after epoch {last}", whole.returned, whole))
        epochs.setdefault(request, epoch)
        last = epoch
    return epochs


def _against(
    operations: tuple[ClientOperation, ...], whole: ClientOperation, epochs: dict[str, int]
) -> Iterable[KeyVerdict]:
    """Yield answers that contradict the whole log."""
    assert whole.returned is not None, "a reading of the whole log has returned"
    for one in operations:
        if one.op is not Op.COMMIT:
            continue
        found = epochs.get(str(one.asked))
        if one.type is Type.OK and found is None:
            yield _no("an answered commit is not in the log", whole.returned, one, whole)
        elif one.type is Type.OK and found != one.answer:
            yield _no("an answered commit is in the log at another epoch", whole.returned, one, whole)
        elif one.type is Type.FAIL and found is not None:
            yield _no("a rejected commit is in the log", whole.returned, one, whole)


def _sweep(points: list[_Point]) -> Iterable[KeyVerdict]:
    """Yield pairs of operations with contradicting orders of time and epoch, each with its line.

    One pass over invokes and returns. ``highest`` is the returned point with the greatest epoch, the first one at equal
    epochs. An operation invoked later must come after it.
    """
    marks = [(one.invoked, False, one) for one in points] + [(one.returned, True, one) for one in points]
    highest: _Point | None = None
    holders: dict[int, _Point] = {}
    for line, is_return, one in sorted(marks, key=_at):
        if not is_return:
            if highest is not None and one.epoch < highest.epoch + one.is_commit:
                why = "a commit got a past epoch" if one.is_commit else "a barrier returned a past epoch"
                yield _no(why, one.returned, highest.returner, one.invoker, one.returner)
            continue
        if one.is_commit:
            other = holders.setdefault(one.epoch, one)
            if other is not one:
                yield _no("two requests have one epoch", line, other.returner, one.invoker, one.returner)
        if highest is None or one.epoch > highest.epoch:
            highest = one


def _at(mark: tuple[int, bool, _Point]) -> int:
    return mark[0]


def _no(why: str, line: int, *culprits: ClientOperation) -> KeyVerdict:
    ordered = tuple(sorted(dict.fromkeys(culprits), key=lambda one: one.invoked))
    return KeyVerdict(Linearizability.NOT_LINEARIZABLE, line, why, ordered)
