"""Generation of Avro schemas from declarations: ``python -m ringlog.wire.avro.avsc schemas/ringlog_schemas``.

A command is declared once, in the file of its family, and a change record by the section of the state that declares it.
The first paragraph of the class's docstring becomes the doc of the schema. A field is ``Annotated`` with its doc, and
with information that its type lacks: ``Before`` (the value in older records), ``Fixed`` (bytes of one size), or a
dataclass (the shape of pairs).

Types map as follows: text to string, a number to long, a tuple to array, a dataclass to record, ``| None`` to a union
with null. A record that a file has already defined is referenced by its name.
"""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Iterator
from inspect import getdoc
from pathlib import Path
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

from ringlog.kernel.changes import CHANGES_OF
from ringlog.kernel.registry import COMMANDS
from ringlog.kernel.values import Before, Command, Fixed, Value, is_value_class, public_name
from ringlog_schemas.catalogue import SUFFIX, VERSION

_VALUES: Final = "ringlog.commands"
"""The namespace of commands and of the values in them."""
RECORD_CLASSES: Final[dict[str, type[Value]]] = {f"{_VALUES}.{kind}": model for kind, model in COMMANDS.items()} | {
    f"ringlog.changes.{model.__name__}": model for model in CHANGES_OF.values()
}
"""Full name to class of the records with generated schemas."""

_SCALARS: Final = {str: "string", int: "long", bool: "boolean", bytes: "bytes"}


def documented(model: type[Value]) -> Iterator[tuple[str, Any, str, tuple[Any, ...]]]:
    """Yield (name, type, doc, other annotations) of each field of a command or value."""
    field_types = get_type_hints(model, include_extras=True)
    for name in model.__struct_fields__:
        field_type = field_types[name]
        assert get_origin(field_type) is Annotated, f"{model.__name__}.{name} has no doc"
        kind, doc, *more = get_args(field_type)
        yield public_name(name), kind, doc, tuple(more)


def schema_of(full_name: str) -> dict[str, Any]:
    """Return the schema of a record, as in its ``.avsc`` file."""
    model, namespace = RECORD_CLASSES[full_name], full_name.rpartition(".")[0]
    more = {VERSION: model.VERSION} if issubclass(model, Command) else {}
    return _record(model, set(), more, namespace)


def text_of(full_name: str) -> str:
    """Return the content of the record's file."""
    return json.dumps(schema_of(full_name), indent=2, ensure_ascii=False) + "\n"


def file_of(full_name: str) -> str:
    """Return the path of the record's file: ``commands/Join.avsc``."""
    _, family, name = full_name.split(".")
    return f"{family}/{name}{SUFFIX}"


def _record(model: type, known: set[str], more: dict[str, Any], namespace: str = _VALUES) -> dict[str, Any]:
    """Return a record schema and add its name to ``known``, the names that the file has defined."""
    known.add(model.__name__)
    doc = " ".join((getdoc(model) or "").split("\n\n")[0].split()).replace("``", "")
    head = {"type": "record", "name": model.__name__, "namespace": namespace, "doc": doc, **more}
    return {**head, "fields": [_field(field, known) for field in documented(model)]}


def _field(field: tuple[str, Any, str, tuple[Any, ...]], known: set[str]) -> dict[str, Any]:
    name, kind, doc, more = field
    before = [("default", _json(one.default)) for one in more if isinstance(one, Before)]
    return {"name": name, "type": _type(kind, more, known), **dict(before), "doc": doc}


def _json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _type(kind: Any, more: tuple[Any, ...], known: set[str]) -> Any:
    if get_origin(kind) in (Union, types.UnionType):
        inner, none = get_args(kind)
        assert none is types.NoneType, f"{kind}: a union has a value or None"
        return ["null", _type(inner, more, known)]
    if get_origin(kind) is tuple:
        inner, *_ = get_args(kind)
        pairs = [one for one in more if is_value_class(one)]
        return {"type": "array", "items": _type(pairs[0] if pairs else inner, more, known)}
    if is_value_class(kind):
        assert isinstance(kind, type)
        return f"{_VALUES}.{kind.__name__}" if kind.__name__ in known else _record(kind, known, {})
    fixed = [one for one in more if isinstance(one, Fixed)]
    return _fixed(fixed[0], known) if kind is bytes and fixed else _SCALARS[kind]


def _fixed(kind: Fixed, known: set[str]) -> Any:
    if kind.name in known:
        return kind.name
    known.add(kind.name)
    namespace, _, name = kind.name.rpartition(".")
    return {"type": "fixed", "name": name, "namespace": namespace, "size": kind.size, "doc": kind.doc}


def main(root: str) -> None:
    """Write every file that differs, and print its path."""
    for full_name in RECORD_CLASSES:
        path = Path(root) / file_of(full_name)
        if not path.exists() or path.read_text(encoding="utf-8") != text_of(full_name):
            path.write_text(text_of(full_name), encoding="utf-8")
            print(f"written: {path}")


if __name__ == "__main__":
    main(*sys.argv[1:])
