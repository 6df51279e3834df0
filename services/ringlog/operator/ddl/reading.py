"""Parser of CQL statements that change the schema.

The grammar (``grammar.lark``) defines the syntax. Each statement becomes the JSON of its command. Fields, defaults and
value rules are those of ``operator.intents.json_commands``, and the log decides whether a command applies. This module
adds only the position of each statement in the text, and the reason why a valid CQL statement or option is not
supported (``REASONS``).

Several statements become one ``SchemaBatch``, which applies completely or not at all.

Source: the grammar of Cassandra 5 and ScyllaDB 6 for CREATE, ALTER and DROP, with ScyllaDB's ``cdc`` and ``tablets``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ringlog.kernel.commands.schema.batch import STATEMENTS_MAX
from ringlog.kernel.values import Value
from ringlog.operator.errors import Refused
from ringlog.operator.intents.intents import Intent
from ringlog.operator.intents.json_commands import intent_of_json

if TYPE_CHECKING:  # Commands without CQL do not load the parser.
    from lark import Lark, Token

Json = dict[str, Any]
Tree = Any
"""A node of the parse tree: ``data`` is its rule, ``meta`` its position in the text."""

TEXT_MAX: Final = 4_000_000
"""The most characters of a text. The limit bounds the work for hostile input."""

TOKENS_MAX: Final = 100_000
"""The most tokens of a text. It allows more than 100 statements of 300 columns, which parse in a few seconds."""
DEPTH_MAX: Final = 64
"""The most nested brackets. The tree is walked recursively, so depth consumes the stack."""
_NESTS: Final = {"(": 1, "[": 1, "{": 1, "<": 1, ")": -1, "]": -1, "}": -1, ">": -1}
_DIGITS_MAX: Final = 18

REASONS: Final[dict[str, str]] = {
    "BATCH": "clients write rows, see docs/build/mutations.md",
    "CUSTOM": "an index has a column and no class",
    "DELETE": "clients write rows, see docs/build/mutations.md",
    "DESC": "rows are always in ascending order",
    "GRANT": "permissions are ACLs of the broker: see `ringlog cluster acls`",
    "INSERT": "clients write rows, see docs/build/mutations.md",
    "OR": "a function must be dropped before it is created again",
    "ROLE": "permissions are ACLs of the broker: see `ringlog cluster acls`",
    "SELECT": "clients read rows, for example with `ringlog data rows`",
    "TRIGGER": "triggers are not supported",
    "TRUNCATE": "to empty a table, drop it and create it again",
    "UPDATE": "clients write rows, see docs/build/mutations.md",
    "USER": "permissions are ACLs of the broker: see `ringlog cluster acls`",
    "USING": "an index has a column and no class",
}
"""CQL keywords that are not supported, and the reason."""

_SIGNS: Final = {"$END": "the end", "NAME": "a name", "QUOTED": "a name", "TEXT": "text in '…'", "NUMBER": "a number"}
_CLASSES: Final = ("SimpleStrategy", "NetworkTopologyStrategy", "EverywhereStrategy")
_ALIASES: Final = {"min_tablet_count": "min_count", "max_tablet_count": "max_count"}


class DdlError(Refused):
    """A text that is not valid CQL (``bad_ddl``), or a statement that is not supported (``ddl_unsupported``).

    ``line`` and ``column`` begin with 1.
    """

    def __init__(self, code: str, text: str, line: int, column: int) -> None:
        super().__init__(code, f"line {line}, column {column}: {text}")
        self.line = line
        self.column = column


class DdlStatement(Value):
    """The JSON of a statement's command, and its position. ``if_needed``: it has IF EXISTS or IF NOT EXISTS."""

    json: Json
    if_needed: bool
    line: int
    column: int


def read_ddl(text: str, keyspace: str = "") -> tuple[DdlStatement, ...]:
    """Parse the statements of a text.

    ``keyspace``: the keyspace of unqualified names until a USE statement changes it. Raises DdlError.
    """
    if len(text) > TEXT_MAX:
        raise DdlError("bad_ddl", f"the text has {len(text):,} characters, the limit is {TEXT_MAX:,}", 1, 1)
    found, reader = [], _Reader(keyspace, text)
    for tree in _parsed(text).children:
        if tree.data == "use":
            reader.keyspace = _name(tree.children[0])
            continue
        if_needed = bool(_parts(tree, "unless_there", "if_there"))
        found.append(DdlStatement(reader.json_of(tree), if_needed, tree.meta.line, tree.meta.column))
    if not found:
        raise DdlError("bad_ddl", "the text contains no statement", 1, 1)
    return tuple(found)


def batch_json(statements: Sequence[DdlStatement]) -> Json:
    """Return the JSON of one command, a statement's own or a ``SchemaBatch`` of them all. Raises DdlError."""
    if len(statements) == 1 and not statements[0].if_needed:
        return statements[0].json
    if len(statements) > STATEMENTS_MAX:
        first = statements[STATEMENTS_MAX]
        text = f"a batch has at most {STATEMENTS_MAX} statements, not {len(statements)}: pass --each, or split the text"
        raise DdlError("bad_ddl", text, first.line, first.column)
    marked = [one.json | ({"if_needed": True} if one.if_needed else {}) for one in statements]
    return {"command": "SchemaBatch", "statements": marked}


def ddl(text: str, keyspace: str = "") -> Intent:
    """Return the intent of a CQL text. Raises DdlError."""
    return intent_of_json(batch_json(read_ddl(text, keyspace)))


def located(statements: Sequence[DdlStatement], detail: str) -> str:
    """Return a message about a batch with the statement's line and column in place of its number."""
    match = re.match(r"statements(?:\[(\d+)\]|, (\d+) of \d+): ", detail)
    if match is None:
        one = statements[0]
        return f"line {one.line}, column {one.column}: {detail}" if len(statements) == 1 else detail
    one = statements[int(match[1]) if match[1] is not None else int(match[2]) - 1]
    return f"line {one.line}, column {one.column}: {detail[match.end() :]}"


# -------------------------------------------------------------------------------------------------------- grammar


@cache
def _parser() -> Lark:
    from lark import Lark

    grammar = Path(__file__).with_name("grammar.lark").read_text("utf-8")
    # Without ASCII, case-insensitive matching accepts the Kelvin sign as k and the long s as s.
    return Lark(grammar, parser="lalr", propagate_positions=True, maybe_placeholders=False, g_regex_flags=re.ASCII)


def _parsed(text: str) -> Tree:
    from lark.exceptions import UnexpectedInput

    try:
        with suppress(UnexpectedInput):  # The plain parser below reports a syntax error with more details.
            return _bounded(text)
        return _parser().parse(text)
    except UnexpectedInput as error:
        token: Token | None = getattr(error, "token", None)
        expected = getattr(error, "accepts", None) or getattr(error, "expected", None) or getattr(error, "allowed", ())
        raise _unexpected(text, token, set(expected or ()), error.line, error.column) from None


def _bounded(text: str) -> Tree:
    """Parse within ``TOKENS_MAX`` and ``DEPTH_MAX``. Raises DdlError, and lark's UnexpectedInput."""
    parsing: Any = _parser().parse_interactive(text)
    depth = 0
    for count, token in enumerate(parsing.iter_parse(), start=1):
        depth += _NESTS.get(token, 0)
        if depth > DEPTH_MAX:
            raise DdlError("bad_ddl", f"nested more than {DEPTH_MAX} deep", token.line, token.column)
        if count > TOKENS_MAX:
            raise DdlError("bad_ddl", f"more than {TOKENS_MAX:,} words and signs", token.line, token.column)
    return parsing.feed_eof()


def _unexpected(text: str, token: Token | None, expected: set[str], line: int, column: int) -> DdlError:
    found = str(token) if token is not None else ""
    if token is not None and token.type == "$END":
        lines = text.rstrip().split("\n")
        return DdlError("bad_ddl", f"the text ends, expected {_spelled(expected)}", len(lines), len(lines[-1]) + 1)
    if (reason := REASONS.get(found.upper())) is not None and "NAME" not in expected:
        return DdlError("ddl_unsupported", f"{found}: {reason}", line, column)
    if not found:
        found = text.split("\n")[line - 1][column - 1 : column]
    return DdlError("bad_ddl", f"{found[:40]!r} is not expected, but {_spelled(expected)}", line, column)


def _spelled(expected: set[str]) -> str:
    """Return expected terminals as they are typed."""
    labels = set()
    for name in expected - {"UUID"}:
        pattern = next((one.pattern for one in _parser().terminals if one.name == name), None)
        plain = pattern is not None and pattern.type == "str"
        labels.add(_SIGNS.get(name) or (pattern.value.upper() if plain and pattern else name.strip("_")))
    return " or ".join(sorted(labels))


# ----------------------------------------------------------------------------------------------------- statements


def _parts(tree: Tree, *rules: str) -> list[Tree]:
    return [child for child in tree.children if getattr(child, "data", None) in rules]


def _name(tree: Tree) -> str:
    """Return an identifier: unchanged if quoted, else in lower case."""
    text = str(tree.children[0])
    return text[1:-1].replace('""', '"') if text.startswith('"') else text.lower()


def _value(tree: Tree) -> Any:
    """Return a literal as a JSON value."""
    match tree.data:
        case "map":
            found: Json = {}
            for pair in tree.children:
                key = str(_value(pair.children[0]))
                if key in found:
                    raise _error(pair, f"{key} appears twice", "bad_ddl")
                found[key] = _value(pair.children[1])
            return found
        case "list":
            return [_value(child) for child in tree.children]
        case "text":
            return str(tree.children[0])[1:-1].replace("''", "'")
        case "number":
            if len(tree.children[0]) > _DIGITS_MAX:
                raise _error(tree, f"a number has at most {_DIGITS_MAX} digits", "bad_ddl")
            return int(tree.children[0])
        case "uuid":
            return str(tree.children[0]).lower()
        case flag:
            return flag == "true"


def _plain(value: Any) -> Any:
    """Return a quoted number or boolean as its value, because CQL allows the quotes."""
    if isinstance(value, str):
        return int(value) if re.fullmatch("[0-9]{1,18}", value) else {"true": True, "false": False}.get(value, value)
    return value


def _error(tree: Tree, text: str, code: str = "ddl_unsupported") -> DdlError:
    return DdlError(code, text, tree.meta.line, tree.meta.column)


class _Reader:
    """Converter of statements to JSON. ``keyspace``: the default keyspace. ``text``: the whole text."""

    def __init__(self, keyspace: str, text: str) -> None:
        self.keyspace = keyspace
        self.text = text

    def json_of(self, tree: Tree) -> Json:
        """Return the JSON of a statement's command. Raises DdlError."""
        match tree.data:
            case "create_keyspace":
                return self._keyspace("CreateKeyspace", tree)
            case "alter_keyspace":
                return self._keyspace("AlterKeyspace", tree)
            case "drop_keyspace":
                return {"command": "DropKeyspace", "name": _name(_parts(tree, "name")[0])}
            case "create_type":
                return {"command": "CreateType", **self._place(tree), "fields": self._fields(tree)}
            case "alter_type":
                return {"command": "AlterType", **self._place(tree), "fields": self._fields(tree)}
            case "drop_type":
                return {"command": "DropType", **self._place(tree)}
            case "create_table":
                found = {"command": "CreateTable", **self._place(tree), "columns": self._columns(tree)}
                return found | _key(tree) | _table_options(tree, frozenset({"cdc", "id", "tablets"}))
            case "add_columns":
                return {"command": "AlterTable", **self._place(tree), "add_columns": self._added(tree)}
            case "drop_columns":
                dropped = [_name(name) for name in _parts(tree, "name")]
                return {"command": "AlterTable", **self._place(tree), "drop_columns": dropped}
            case "rename_columns":
                names = [_name(name) for name in _parts(tree, "name")]
                renamed = [{"from": name, "to": to} for name, to in zip(names[::2], names[1::2], strict=True)]
                return {"command": "AlterTable", **self._place(tree), "rename_columns": renamed}
            case "alter_options":
                found = {"command": "AlterTable", **self._place(tree)}
                return found | _table_options(tree, frozenset({"cdc", "tablets"}))
            case "drop_table":
                return {"command": "DropTable", **self._place(tree)}
            case "create_view":
                return {"command": "CreateView", **self._view(tree)}
            case "drop_view":
                return {"command": "DropView", **self._place(tree)}
            case "create_index":
                return {"command": "CreateIndex", **self._index(tree)}
            case "drop_index":
                return {"command": "DropIndex", **self._place(tree)}
            case "create_function":
                return {"command": "CreateFunction", **self._function(tree)}
            case "create_aggregate":
                return {"command": "CreateAggregate", **self._aggregate(tree)}
            case "drop_function":
                return {"command": "DropFunction", **self._overload(tree)}
            case "drop_aggregate":
                return {"command": "DropAggregate", **self._overload(tree)}
            case other:
                raise AssertionError(f"{other} is not supported")

    def _place(self, tree: Tree) -> Json:
        place, *_ = _parts(tree, "place")
        names = [_name(name) for name in place.children]
        keyspace = names[0] if len(names) == 2 else self.keyspace
        if not keyspace:
            raise _error(place, f"{names[-1]} has no keyspace: write KEYSPACE.NAME, or USE KEYSPACE before", "bad_ddl")
        return {"keyspace": keyspace, "name": names[-1]}

    def _fields(self, tree: Tree) -> list[Json]:
        for field in _parts(tree, "field"):
            if _parts(field, "static", "primary"):
                raise _error(field, "a field of a type cannot be static or a key", "bad_ddl")
        return self._columns(tree)

    def _added(self, tree: Tree) -> list[Json]:
        for field in _parts(tree, "field"):
            if _parts(field, "primary"):
                raise _error(field, "the key of a table cannot change")
        return self._columns(tree)

    def _columns(self, tree: Tree) -> list[Json]:
        found, keyspace = [], self._place(tree)["keyspace"]
        for field in _parts(tree, "field"):
            name, kind = field.children[:2]
            static = {"static": True} if _parts(field, "static") else {}
            found.append({"name": _name(name), "type": _type(kind, keyspace), **static})
        return found

    def _view(self, tree: Tree) -> Json:
        found = self._place(tree)
        key = _key(tree)
        for condition in _parts(tree, "not_null"):
            if _name(condition.children[0]) not in key["partition_key"] + key["clustering_key"]:
                raise _error(condition, "IS NOT NULL is allowed only for key columns of the view", "bad_ddl")
        for name, (_, place) in _options(tree).items():
            raise _error(place, f"a view does not support the option {name}")
        (selected,) = _parts(tree, "selected")
        columns = [_name(name) for name in _parts(selected, "name")]
        return {**found, "table": self._inner(selected, found["keyspace"]), "columns": columns, **key}

    def _index(self, tree: Tree) -> Json:
        found = self._place(tree)
        for part in _parts(tree, "of_part"):
            raise _error(part, "an index covers a whole column")
        *name, column = [_name(one) for one in _parts(tree, "name")]
        named = {"name": name[0]} if name else {}
        return {"keyspace": found["keyspace"], **named, "table": found["name"], "column": column}

    def _function(self, tree: Tree) -> Json:
        found = self._place(tree)
        arguments = self._fields(tree)
        (returns,), (language,), (body,) = _parts(tree, "type"), _parts(tree, "name"), _parts(tree, "body")
        text = str(body.children[0])
        return {
            **found,
            "arguments": [one["type"] for one in arguments],
            "argument_names": [one["name"] for one in arguments],
            "returns": _type(returns, found["keyspace"]),
            "language": _name(language),
            "body": text[2:-2] if text.startswith("$$") else text[1:-1].replace("''", "'"),
            "called_on_null": bool(_parts(tree, "called")),
        }

    def _aggregate(self, tree: Tree) -> Json:
        keyspace = self._place(tree)["keyspace"]
        found = self._overload(tree) | {"state_function": self._inner_place(_parts(tree, "place")[1], keyspace)}
        found["state_type"] = _type(_parts(tree, "type")[0], keyspace)
        for final in _parts(tree, "final"):
            found["final_function"] = self._inner(final, keyspace)
        for initial in _parts(tree, "initial"):
            meta = initial.children[0].meta  # The command stores the literal as the statement spells it.
            found["initial"] = self.text[meta.start_pos : meta.end_pos]
        return found

    def _overload(self, tree: Tree) -> Json:
        """Return the name of a function or aggregate and, if given, its argument types."""
        found = self._place(tree)
        for types in _parts(tree, "types"):
            found["arguments"] = [_type(one, found["keyspace"]) for one in types.children]
        return found

    def _inner(self, tree: Tree, keyspace: str) -> str:
        """Return a name that must be in the same keyspace as the object that refers to it."""
        return self._inner_place(_parts(tree, "place")[0], keyspace)

    def _inner_place(self, place: Tree, keyspace: str) -> str:
        names = [_name(name) for name in place.children]
        if len(names) == 2 and names[0] != keyspace:
            raise _error(place, f"{names[1]} of another keyspace, {names[0]}, cannot be used in {keyspace}")
        return names[-1]

    def _keyspace(self, command: str, tree: Tree) -> Json:
        options = _options(tree)
        for name, (value, place) in options.items():
            if name not in ("replication", "tablets", "durable_writes"):
                raise _error(place, f"a keyspace does not support the option {name}")
            if name == "durable_writes" and value is not True:
                raise _error(place, "every write is durable, so durable_writes must be true")
        if "replication" not in options:
            raise _error(tree, "expected WITH replication = {…}", "bad_ddl")
        value, place = options["replication"]
        found = _replication(value, place)
        if "tablets" in options:
            found = _in_tablets(found, *options["tablets"])
        return {"command": command, "name": _name(_parts(tree, "name")[0]), "replication": found}


def _type(tree: Tree, keyspace: str) -> str:
    """Return a type as commands spell it. A user type may be qualified with its own keyspace."""
    place, *inner = tree.children
    names = [_name(name) for name in place.children]
    if len(names) == 2 and names[0] != keyspace:
        raise _error(place, f"a type of another keyspace, {names[0]}, cannot be used in {keyspace}")
    name = "text" if names[-1] == "varchar" else names[-1]
    return f"{name}<{', '.join(_type(one, keyspace) for one in inner)}>" if inner else name


def _key(tree: Tree) -> Json:
    """Return the key fields from PRIMARY KEY (…), or from the column that is marked as the key."""
    marked = [field for field in _parts(tree, "field") if _parts(field, "primary")]
    found = [*marked, *_parts(tree, "primary_key")]
    if len(found) != 1:
        raise _error(found[1] if found else tree, f"a table has one PRIMARY KEY, not {len(found)}", "bad_ddl")
    if marked:
        return {"partition_key": [_name(marked[0].children[0])], "clustering_key": []}
    partition, *clustering = found[0].children
    return {
        "partition_key": [_name(name) for name in partition.children],
        "clustering_key": [_name(name) for name in clustering],
    }


# -------------------------------------------------------------------------------------------------------- options


def _options(tree: Tree) -> dict[str, tuple[Any, Tree]]:
    """Return name to (value, position). Refuses duplicates, and another clustering order than the key's, ascending."""
    found: dict[str, tuple[Any, Tree]] = {}
    for options in _parts(tree, "options"):
        for option in options.children:
            if option.data == "compact":
                raise _error(option, "COMPACT STORAGE: tables have one storage format")
            if option.data == "clustering_order":
                clustering = _key(tree)["clustering_key"] if _parts(tree, "primary_key") else None
                if [_name(order.children[0]) for order in option.children] != clustering:
                    raise _error(option, "expected the columns of the clustering key, in their order", "bad_ddl")
                continue
            name = _name(option.children[0])
            if name in found:
                raise _error(option, f"{name} appears twice", "bad_ddl")
            found[name] = _value(option.children[1]), option
    return found


def _table_options(tree: Tree, allowed: frozenset[str]) -> Json:
    found: Json = {}
    for name, (value, place) in _options(tree).items():
        if name not in allowed:
            raise _error(
                place, f"a table does not support the option {name}; supported are {', '.join(sorted(allowed))}"
            )
        if isinstance(value, Mapping):
            value = {_ALIASES.get(key, key) if name == "tablets" else key: _plain(one) for key, one in value.items()}
        found[name] = value
    return found


def _replication(value: Any, place: Tree) -> Json:
    """Return a replication map as JSON, from a Cassandra strategy class or a Ringlog strategy."""
    if not isinstance(value, Mapping) or ("class" in value) == ("strategy" in value):
        raise _error(place, "replication: expected {'class': …} or {'strategy': …}", "bad_ddl")
    rest = {key: _plain(one) for key, one in value.items() if key != "class"}
    if "strategy" in value:
        return rest
    name = str(value["class"]).removeprefix("org.apache.cassandra.locator.")
    if name == "SimpleStrategy":
        if rest.keys() != {"replication_factor"}:
            raise _error(place, "replication: SimpleStrategy supports only replication_factor", "bad_ddl")
        return {"strategy": "simple", "factor": rest["replication_factor"]}
    if name == "NetworkTopologyStrategy":
        if "replication_factor" in rest:
            raise _error(place, "replication_factor for all datacenters is not supported: name each datacenter")
        return {"strategy": "network", "datacenters": rest}
    if name == "EverywhereStrategy" and not rest:
        return {"strategy": "entire"}
    raise _error(place, f"replication: the class {name} is not supported; supported are {', '.join(_CLASSES)}")


def _in_tablets(replication: Json, value: Any, place: Tree) -> Json:
    """Return the replication in tablets if the option enables them, else unchanged."""
    plain = {key: _plain(one) for key, one in value.items()} if isinstance(value, Mapping) else {}
    if plain.keys() != {"enabled"} or not isinstance(plain["enabled"], bool):
        raise _error(place, "tablets: expected {'enabled': true} or {'enabled': false}; tables have the other options")
    if not plain["enabled"]:
        return replication
    if replication["strategy"] in ("entire", "zone"):
        raise _error(place, f"tablets: the strategy {replication['strategy']} does not support tablets")
    return replication | {"strategy": "tablets"}
