"""How functions of one name are distinguished: by the types of their arguments, in one spelling.

An argument is a whole value, so ``frozen`` says nothing of it: ``f(list<int>)`` and ``f(frozen<list<int>>)`` are one
function. Names of user types stay names: they are those of the function's keyspace.

Source: CQL, "User-defined functions".
"""

from __future__ import annotations

from collections.abc import Iterable

from ringlog.kernel.schema.collections import FROZEN, tokens_of


def normalised(type_name: str) -> str:
    """A type's name with blanks only where they are needed, in one way; empty for what cannot be a type's name."""
    return _joined(tokens_of(type_name) or ())


def thawed(type_name: str) -> str:
    """The same without ``frozen``, wherever it stands."""
    found, inside = list[str](), list[bool]()
    for token in tokens_of(type_name) or ():
        if token == "<":
            inside.append(found[-1:] == [FROZEN])
            if inside[-1]:
                found.pop()
                continue
        elif token == ">" and inside and inside.pop():
            continue
        found.append(token)
    return _joined(found)


def signature(keyspace: str, name: str, arguments: Iterable[str]) -> str:
    """``keyspace.name(type, type)``: what no two functions or aggregates have in common."""
    return f"{keyspace}.{name}({', '.join(map(thawed, arguments))})"


def _joined(tokens: Iterable[str]) -> str:
    return " ".join(tokens).replace(" < ", "<").replace(" , ", ", ").replace(" >", ">")
