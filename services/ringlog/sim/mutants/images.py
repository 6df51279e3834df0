"""Bugs in the states of rows that images are made of."""

from __future__ import annotations

from ringlog.sim.imaging import PROFILE as IMAGES
from ringlog.sim.mutants.plant import Mutant

STORE, WORK, TABLES = "ringlog_cdc.images.store", "ringlog_cdc.images.work", "ringlog_cdc.images.tables"
PIECES = "ringlog_cdc.pieces"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "states_not_taken_back",
        STORE,
        "for (chunk,) in chunks.fetchall():",
        "for (chunk,) in chunks.fetchall()[:0]:",
        "a part that is carried out again begins with the states that it left the first time",
        500,
    ),
    Mutant(
        "states_from_anywhere",
        STORE,
        "if position > end:",
        "if position < 0:",
        "a task that comes when later parts are done takes their states back",
        200,
        IMAGES,
    ),
    Mutant(
        "states_of_any_writer",
        STORE,
        'if self._is_there() and self._load()["owner"] > owner:',
        'if self._is_there() and self._load()["owner"] < 0:',
        "a driver that was replaced takes back what its successor has kept",
        200,
        IMAGES,
    ),
    Mutant(
        "undo_forgotten_early",
        STORE,
        'WHERE start < ?", (kept_from,))',
        'WHERE start <= ?", (max(kept_from, self._start),))',
        "what a part changed cannot be taken back once its states are committed",
        500,
    ),
    Mutant(
        "refused_writes_count",
        PIECES,
        "    if verdict != ROUTED:\n        return RoutedWrite(verdict)\n    name =",
        "    if verdict > ROUTED and states is not None:\n"
        '        name = f"{mutation.keyspace}.{mutation.table}"\n'
        "        key = compose([part for part in mutation.partition_key if part is not None])\n"
        "        if name in table.images:\n"
        "            pieces = (plain_piece(mutation),)\n"
        "            left = imaged(states, name, table.images[name], key, pieces, write.appended, False).states\n"
        "            for state in left.items():\n"
        "                states.put(*state)\n"
        "    if verdict != ROUTED:\n        return RoutedWrite(verdict)\n    name =",
        "a write that is refused leaves its cells behind",
        500,
    ),
    Mutant(
        "images_of_a_namesake",
        TABLES,
        '"id": table.id,',
        '"id": "",',
        "a table that is made anew has the rows of its namesake before it",
        1_500,
    ),
    Mutant(
        "states_outlast_a_pause",
        STORE,
        'self._about["numbers"].items() if name in kept}',
        'self._about["numbers"].items() if kept}',
        "images of a table go on with states that writes have passed by",
        500,
        IMAGES,
    ),
    Mutant(
        "folder_of_any_writer",
        WORK,
        "store.check_owner(self._owner)",
        "store.check_owner(2**62)",
        "a driver that was replaced, and knows of no images yet, deletes the states of its successor",
        500,
        IMAGES,
    ),
)
