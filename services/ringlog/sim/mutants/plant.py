"""Planting a bug: one piece of a module's source replaced by another, in the running process.

The changed source is compiled, and every function of the module whose code differs gets the new code in place, so that
all that holds a reference to it runs the bug. ``planted`` takes it back.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ringlog.sim import prefix


@dataclass(frozen=True, slots=True)
class Mutant:
    """In ``module`` the text ``old``, which is there once, becomes ``new``.

    ``bug``: what that means, in a few words; ``seeds``: the most of ``profile`` within which it must be found.
    """

    name: str
    module: str
    old: str
    new: str
    bug: str
    seeds: int
    profile: str = "small"


class DoesNotApply(Exception):
    """The module does not have the text that a mutant replaces, or has it twice, or no function changes by it."""


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Run the body with the bug. Raises DoesNotApply."""
    module = import_module(mutant.module)
    changes = _changes(mutant, module)
    good = [(function, function.__code__) for function, _ in changes]

    @contextmanager
    def taken_back() -> Iterator[None]:
        _put(good)
        try:
            yield
        finally:
            _put(changes)

    _put(changes)
    prefix.around = taken_back
    try:
        yield
    finally:
        prefix.around = nullcontext
        _put(good)


def _put(codes: list[tuple[FunctionType, CodeType]]) -> None:
    for function, code in codes:
        function.__code__ = code


def _changes(mutant: Mutant, module: ModuleType) -> list[tuple[FunctionType, CodeType]]:
    source = inspect.getsource(module)
    if source.count(mutant.old) != 1:
        raise DoesNotApply(
            f"{mutant.name}: {mutant.module} has the text {source.count(mutant.old)} times: {mutant.old!r}"
        )
    scratch = ModuleType(module.__name__)
    scratch.__dict__.update({"__file__": module.__file__, "__package__": module.__package__})
    name = f"{module.__name__}.mutant"
    sys.modules[name] = scratch
    scratch.__dict__["__name__"] = name
    try:
        exec(compile(source.replace(mutant.old, mutant.new), module.__file__ or name, "exec"), scratch.__dict__)
    finally:
        del sys.modules[name]
    present, changed = _functions(module), _functions(scratch)
    changes = [
        (function, changed[where].__code__)
        for where, function in sorted(present.items())
        if where in changed and not _same(function.__code__, changed[where].__code__)
    ]
    if not changes:
        raise DoesNotApply(f"{mutant.name}: no function of {mutant.module} changes")
    return changes


def _functions(module: ModuleType) -> dict[str, FunctionType]:
    """The module's own functions and methods by qualified name, wrapped ones unwrapped."""
    found: dict[str, FunctionType] = {}

    def take(where: str, value: Any) -> None:
        value = getattr(value, "__func__", value)
        if isinstance(value, property):
            value = value.fget
        if isinstance(value, cached_property):
            value = value.func
        value = inspect.unwrap(value) if callable(value) else value
        if isinstance(value, FunctionType) and value.__module__ == module.__dict__["__name__"]:
            found[where] = value

    for name, value in vars(module).items():
        if isinstance(value, type) and value.__module__ == module.__dict__["__name__"]:
            for inner, member in vars(value).items():
                take(f"{name}.{inner}", member)
        else:
            take(name, value)
    return found


def _same(one: CodeType, other: CodeType) -> bool:
    """True if two functions do the same, apart from where their lines are."""
    if one.co_code != other.co_code or one.co_names != other.co_names or len(one.co_consts) != len(other.co_consts):
        return False
    return all(
        _same(a, b) if isinstance(a, CodeType) and isinstance(b, CodeType) else type(a) is type(b) and a == b
        for a, b in zip(one.co_consts, other.co_consts, strict=True)
    )
