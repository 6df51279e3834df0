"""Names in the SQLite copy, which ignores case.

In Ringlog, ``orders`` and ``Orders`` are two tables, or two columns. SQLite treats them as one. If names differ only in
case, the first one keeps its name. The order is: names that the store already has, then the order of the schema, which
only grows. The other names are changed.
"""

from __future__ import annotations

from collections.abc import Iterable


def unique_names(names: Iterable[str], there: Iterable[str] = ()) -> dict[str, str]:
    """Return for each of ``names`` its name in a store that already has the names ``there``.

    It is the same name, or the name followed by ``$2``, ``$3`` and so on. Schema names have no dollar sign, so no other
    name collides.
    """
    taken = {name.lower() for name in there}
    found: dict[str, str] = {}
    for name in names:
        own, number = name, 1
        while own.lower() in taken:
            number += 1
            own = f"{name}${number}"
        taken.add(own.lower())
        found[name] = own
    return found
