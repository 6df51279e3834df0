"""Fast constructors for frozen dataclasses, because a fold makes one or more values for each entry.

The constructor of a frozen dataclass sets each field through ``object.__setattr__``. For the fields of a state that was
a quarter of the time to fold a Noop. ``maker_of`` fills an instance of a mutable class with the same slots and then
sets its ``__class__`` to the frozen class. This takes a third of the time and gives the same value. The arguments are
all fields, in their order, without checks and without defaults.

``replaced`` works like ``dataclasses.replace`` but is made that way: one generated function for each class and choice
of fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["is_plain", "maker_of", "replaced", "replacer_of", "stamper_of"]

T = TypeVar("T")


def maker_of(frozen: type[T]) -> Callable[..., T]:
    """Return a function of all fields of ``frozen``, a frozen dataclass with slots and without ``__post_init__``."""
    names = _names(frozen)
    return _written(frozen, names, ((name, name) for name in names))


@cache
def replacer_of(frozen: type[T], given: tuple[str, ...]) -> Callable[..., T]:
    """Return a function of a value and the fields ``given``, in that order, that returns a copy with these fields."""
    names = _names(frozen, given)
    parts = ((name, name if name in given else f"_old.{name}") for name in names)
    return _written(frozen, ("_old", *given), parts)


@cache
def stamper_of(frozen: type[T], given: tuple[str, ...], stamped: frozenset[str], stamps: str) -> Callable[..., T]:
    """Return a function like that of ``replacer_of``, of a value, a stamp and the fields ``given``.

    Each given field in ``stamped`` whose object was replaced gets the stamp in the map ``stamps``.
    """
    assert stamps not in {*given, *stamped}, "stamps are not passed as fields"
    lines = [f"_stamps = _old.{stamps}"]
    for name in given:
        if name in stamped:
            lines += [f"if {name} is not _old.{name}:", f"    _stamps = _stamps.set({name!r}, _stamp)"]
    fresh = {stamps: "_stamps"} | {name: name for name in given}
    parts = ((name, fresh.get(name, f"_old.{name}")) for name in _names(frozen, given))
    return _written(frozen, ("_old", "_stamp", *given), parts, lines)


def _names(frozen: type[Any], given: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the names of the fields. Raise TypeError if ``given`` has a name that is not a field."""
    assert not hasattr(frozen, "__post_init__"), "only a class without __post_init__ is bypassed"
    assert all(_is_bare(base) for base in frozen.__bases__), "slots of base classes are fields"
    assert frozen.__dataclass_params__.frozen, "values are frozen, because states share them"
    names = tuple(field.name for field in fields(frozen))
    if unknown := set(given).difference(names):
        raise TypeError(f"{frozen.__name__} has no fields {sorted(unknown)}")
    return names


def _is_bare(base: type[Any]) -> bool:
    """Return True if the base adds nothing to its instances. ``Generic`` has no ``__slots__`` in newer Pythons."""
    return base.__basicsize__ == object.__basicsize__ and base.__dictoffset__ == base.__weakrefoffset__ == 0


def is_plain(frozen: type[Any]) -> bool:
    """Return True if ``maker_of`` supports this dataclass."""
    return (
        "__slots__" in frozen.__dict__ and not hasattr(frozen, "__post_init__") and all(map(_is_bare, frozen.__bases__))
    )


def _written(
    frozen: type[T], parameters: Iterable[str], parts: Iterable[tuple[str, str]], before: Iterable[str] = ()
) -> Callable[..., T]:
    """Return a function of ``parameters`` that makes a ``frozen`` from ``parts``: pairs of a field and its expression.

    ``before``: lines that run first.
    """
    inside = {"__slots__": _names(frozen), "__setattr__": object.__setattr__}
    open_class = type(f"Open{frozen.__name__}", frozen.__bases__, inside)
    lines = [f"def make({', '.join(parameters)}):", *(f"    {line}" for line in before), "    _made = _new(_open)"]
    values = dict(parts)
    assert values.keys() == {*_names(frozen)}, "each field is set: a slot without value raises when it is read"
    lines += [f"    _made.{name} = {value}" for name, value in values.items()]
    lines += ["    _made.__class__ = _frozen", "    return _made"]
    scope: dict[str, Any] = {"_new": object.__new__, "_open": open_class, "_frozen": frozen}
    exec("\n".join(lines), scope)
    make: Callable[..., T] = scope["make"]
    return make


if TYPE_CHECKING:  # type checkers get the fields and their types
    from dataclasses import replace as replaced
else:

    def replaced(value: T, **given: Any) -> T:
        """Return ``value`` with the fields ``given``. Raise TypeError for a field that its class does not have."""
        return replacer_of(type(value), tuple(given))(value, *given.values())
