"""What a process asks of Python's collector of cyclic garbage.

States and entries hold no cycles: they are freed as they are replaced. By default the collector still looks at all
young values whenever 700 more were made than freed, which each batch of entries does many times, and in vain.

What a start loads is there to stay. The collector would look through it while it is loaded, and once more when the
interpreter ends: a fifth of what a small command takes.
"""

from __future__ import annotations

import gc
from typing import Final

YOUNG: Final = 20_000
"""Values made, less those that were freed, before the young ones are looked at."""


def rarely_collect() -> None:
    """Look at young values rarely, and never again at what there is by now: that stays for as long as the process.

    Nobody is answered during a full collection, and it would walk through all of it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG)


def load_undisturbed() -> None:
    """For the first lines of a process: look at young values rarely, from before its modules are loaded."""
    gc.set_threshold(YOUNG)


def end_undisturbed() -> None:
    """For the last lines of one: what is there by now goes with the process, and is not looked through before."""
    gc.freeze()
