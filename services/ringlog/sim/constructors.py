"""Constructors of immutable dataclasses, in half of the time: a tenth of a run is spent in those that Python generates.

A frozen dataclass refuses assignment, so its generated constructor has to call ``object.__setattr__`` for each field.
Here the new object is for that moment one of an open class of the same layout, whose fields are assigned, and then what
it should be. Values, arguments and the refusal of later assignments are the same. An object of a subclass has another
layout: its fields are set as Python would.

Only for processes that do nothing but runs (``search.prepare``): production code keeps what Python generates.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from types import FunctionType
from typing import Any

PACKAGES = ("ringlog", "ringlog_cdc")
FIELDS_MIN = 3
"""With fewer fields there is nothing to gain."""


def hasten() -> None:
    """Give all that can have it a faster constructor, of the modules that are imported by now; once for each class."""
    for cls in _immutables():
        cls.__init__ = _constructor(cls)


def _immutables() -> Iterator[Any]:
    """Frozen dataclasses with slots and a generated constructor, that inherit nothing."""
    modules = [
        module
        for name, module in sorted(sys.modules.items())
        if name.partition(".")[0] in PACKAGES and module is not None
    ]
    for module in modules:
        for cls in list(vars(module).values()):
            if (
                isinstance(cls, type)
                and cls.__module__ == module.__name__
                and is_dataclass(cls)
                and cls.__bases__ == (object,)
                and cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
                and _is_generated(vars(cls).get("__init__"))
                and len(vars(cls).get("__slots__", ())) >= FIELDS_MIN
                and {field.name for field in fields(cls) if field.init and not field.kw_only}
                == set(vars(cls)["__slots__"])
            ):
                yield cls


def _is_generated(constructor: object) -> bool:
    return isinstance(constructor, FunctionType) and constructor.__code__.co_filename == "<string>"


def _constructor(cls: Any) -> FunctionType:
    """``cls.__init__`` as Python generates it, but for the way in which fields are set."""
    open_class = type(cls.__name__, (), {"__slots__": cls.__slots__})
    known: dict[str, Any] = {"_become": object.__setattr__, "_open": open_class, "_cls": cls, "_missing": MISSING}
    parameters, slow, fast = [], [], ["_become(self, '__class__', _open)"]
    for field in fields(cls):
        value = field.name
        if field.default is not MISSING:
            known[f"_default_{field.name}"] = field.default
            parameters.append(f"{field.name}=_default_{field.name}")
        elif field.default_factory is not MISSING:
            known[f"_make_{field.name}"] = field.default_factory
            parameters.append(f"{field.name}=_missing")
            value = f"_make_{field.name}() if {field.name} is _missing else {field.name}"
        else:
            parameters.append(field.name)
        slow.append(f"_become(self, {field.name!r}, {value})")
        fast.append(f"self.{field.name} = {value}")
    fast.append("self.__class__ = _cls")
    lines = [
        "if self.__class__ is _cls:",
        *(f"    {line}" for line in fast),
        "else:",
        *(f"    {line}" for line in slow),
    ]
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    body = "".join(f"\n    {line}" for line in lines)
    exec(compile(f"def __init__(self, {', '.join(parameters)}):{body}\n", __file__, "exec"), known)
    made: FunctionType = known["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made
