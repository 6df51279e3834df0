"""Making values of frozen dataclasses quickly, where a fold makes one or more for each entry.

The constructor of a frozen dataclass sets each field through ``object.__setattr__``: for the fields of a state that
was a quarter of what folding a Noop took. ``maker_of`` fills an instance of an open class with the same slots and turns
it into one of the frozen class, which no field can be set of any more: a third of the time, and the same value. Its
arguments are all fields, in their order; nothing is checked and no default is filled in.

``replaced`` is ``dataclasses.replace`` made that way: a function is written once for each class and choice of fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["is_plain", "maker_of", "replaced", "replacer_of", "stamper_of"]

T = TypeVar("T")


def maker_of(frozen: type[T]) -> Callable[..., T]:
    """A function of all fields of ``frozen``, a frozen dataclass with slots and without ``__post_init__``."""
    names = _names(frozen)
    return _written(frozen, names, ((name, name) for name in names))


@cache
def replacer_of(frozen: type[T], given: tuple[str, ...]) -> Callable[..., T]:
    """A function of a value and of the fields ``given``, in that order: the value with these."""
    names = _names(frozen, given)
    parts = ((name, name if name in given else f"_old.{name}") for name in names)
    return _written(frozen, ("_old", *given), parts)


@cache
def stamper_of(frozen: type[T], given: tuple[str, ...], stamped: frozenset[str], stamps: str) -> Callable[..., T]:
    """As ``replacer_of``, of a value, of a stamp and of the fields ``given``.

    Those of them that are ``stamped``, and not the same objects any more, get the stamp in the map ``stamps``.
    """
    lines = [f"_stamps = _old.{stamps}"]
    for name in given:
        if name in stamped:
            lines += [f"if {name} is not _old.{name}:", f"    _stamps = _stamps.set({name!r}, _stamp)"]
    fresh = {stamps: "_stamps"} | {name: name for name in given}
    parts = ((name, fresh.get(name, f"_old.{name}")) for name in _names(frozen, given))
    return _written(frozen, ("_old", "_stamp", *given), parts, lines)


def _names(frozen: type[Any], given: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The fields, which have those that are ``given``."""
    assert not hasattr(frozen, "__post_init__"), "a value that checks itself is made by its class"
    assert all(_is_bare(base) for base in frozen.__bases__), "an open class has no slots but the fields"
    names = tuple(field.name for field in fields(frozen))
    if unknown := set(given).difference(names):
        raise TypeError(f"{frozen.__name__} has no fields {sorted(unknown)}")
    return names


def _is_bare(base: type[Any]) -> bool:
    """Nothing in its instances comes from this base."""
    return base is object or (base.__bases__ == (object,) and base.__dict__.get("__slots__") == ())


def is_plain(frozen: type[Any]) -> bool:
    """True if ``maker_of`` makes values of this dataclass."""
    return (
        "__slots__" in frozen.__dict__ and not hasattr(frozen, "__post_init__") and all(map(_is_bare, frozen.__bases__))
    )


def _written(
    frozen: type[T], parameters: Iterable[str], parts: Iterable[tuple[str, str]], before: Iterable[str] = ()
) -> Callable[..., T]:
    """A function of ``parameters`` that makes a ``frozen`` of ``parts``: a field, and what it is to be.

    ``before``: lines that come first.
    """
    inside = {"__slots__": _names(frozen), "__setattr__": object.__setattr__}
    open_class = type(f"Open{frozen.__name__}", frozen.__bases__, inside)
    lines = [f"def make({', '.join(parameters)}):", *(f"    {line}" for line in before), "    _made = _new(_open)"]
    lines += [f"    _made.{name} = {value}" for name, value in parts]
    lines += ["    _made.__class__ = _frozen", "    return _made"]
    scope: dict[str, Any] = {"_new": object.__new__, "_open": open_class, "_frozen": frozen}
    exec("\n".join(lines), scope)
    make: Callable[..., T] = scope["make"]
    return make


if TYPE_CHECKING:  # which fields there are, and of which types
    from dataclasses import replace as replaced
else:

    def replaced(value: T, **given: Any) -> T:
        """``value`` with the fields ``given``; TypeError for one that its class does not have."""
        return replacer_of(type(value), tuple(given))(value, *given.values())
