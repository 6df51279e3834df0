"""Names of the schema where a store does not tell upper from lower case: one rule for the SQLite copy and the lake.

``orders`` and ``Orders`` are two tables here, and two columns. SQLite and Delta take them for one. So of names that
differ only in case the first to come keeps its own, and later ones do not have it: in the order of the
schema, to which columns are only ever added, behind those that the store has already. What a store does for the others
is its own matter: the SQLite copy gives them another name (``unique_names``), the lake leaves them out.
"""

from __future__ import annotations

from collections.abc import Iterable


def unique_names(names: Iterable[str], there: Iterable[str] = ()) -> dict[str, str]:
    """Each of ``names`` to the one that it has in a store with these names ``there``: its own, or one with ``$2``,
    ``$3``, … behind it. No name of the schema has a dollar sign, so these meet no other.
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


def displaced_names(names: Iterable[str], there: Iterable[str] = ()) -> frozenset[str]:
    """Those of ``names`` that another one has taken from them; what is ``there`` keeps its own."""
    present = frozenset(there)
    own = unique_names((name for name in names if name not in present), present)
    return frozenset(name for name, given in own.items() if given != name)
