"""What a Python worker of Spark does around every task, and how it is spared.

A worker that is kept for the next task begins each with ``importlib.invalidate_caches``: every importer of a zip file
(PySpark comes as two, and one importer stands for each of its packages) reads the whole directory of its file again. It
ends each task with a full garbage collection, which goes through all objects of all modules. Together that took three
times as long as the rows of a batch of 100,000 (``py-spy``). Neither is of use to a function whose modules are loaded.

The columns of an Arrow batch are a few megabytes that are freed together. The C library gives such memory back to the
system at once, and for the next Arrow batch the system has to clear every page of it again, which took a third of the
worker's time. So a worker keeps what it had, as much as the largest Arrow batch has needed.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import zipimport
from functools import cache


def settle() -> None:
    """To be called in each task: forgets importers of zip files, which come back when something has to be imported,
    takes what is loaded by now out of the sight of the collector, and has freed memory kept.
    """
    importers = sys.path_importer_cache
    for path in [path for path, finder in importers.items() if isinstance(finder, zipimport.zipimporter)]:
        del importers[path]
    _freeze()
    _keep_memory()


_left = [2]
"""How many tasks of this process still begin with a look for what is loaded: the first one loads what it needs."""


def _freeze() -> None:
    """What is made later may be collected."""
    if _left[0]:
        _left[0] -= 1
        gc.collect()
        gc.freeze()


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Of ``mallopt(3)``."""
KEPT_BYTES = 256 * 2**20
LARGEST_BYTES = 32 * 2**20
"""Larger pieces come from the system one by one: more than that the C library does not allow."""


@cache
def _keep_memory() -> bool:
    """Once a process: freed memory stays with it, up to ``KEPT_BYTES``; False where the C library has no such say."""
    try:
        library = ctypes.CDLL(None)
        settings = {M_TRIM_THRESHOLD: KEPT_BYTES, M_MMAP_THRESHOLD: LARGEST_BYTES}
        return all(library.mallopt(what, count) == 1 for what, count in settings.items())
    except (OSError, AttributeError):
        return False
