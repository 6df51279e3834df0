"""Tuning of Spark's Python workers, which Spark reuses for many tasks.

PySpark begins each task with ``importlib.invalidate_caches``. Every importer of a zip file then reads the whole
directory of its file again, and PySpark itself comes as two zip files with one importer per package. PySpark ends each
task with a full garbage collection, which visits all objects of all modules. Together they took three times as long as
the rows of a batch of 100,000 (``py-spy``). A function whose modules are loaded needs neither.

The columns of an Arrow batch are a few megabytes that are freed together. The C library returns such memory to the
system at once, and the system must clear every page for the next batch. That took a third of the worker's time, so a
worker keeps as much memory as its largest Arrow batch has needed.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import zipimport
from functools import cache


def settle() -> None:
    """Tune this process. Called in each task.

    Removes the importers of zip files, which return with the next import, exempts loaded objects from garbage
    collection, and keeps freed memory.
    """
    importers = sys.path_importer_cache
    for path in [path for path, finder in importers.items() if isinstance(finder, zipimport.zipimporter)]:
        del importers[path]
    _freeze()
    _keep_memory()


_left = [2]
"""Number of tasks that still freeze loaded objects. The first task imports modules, so the second task freezes them."""


def _freeze() -> None:
    """Exempt all objects so far from garbage collection. Later objects are collected as usual."""
    if _left[0]:
        _left[0] -= 1
        gc.collect()
        gc.freeze()


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of ``mallopt(3)``."""
KEPT_BYTES = 256 * 2**20
"""Freed memory that stays with the process."""
LARGEST_BYTES = 32 * 2**20
"""Larger allocations come from the system one by one. The C library allows no higher threshold."""


@cache
def _keep_memory() -> bool:
    """Keep freed memory, up to ``KEPT_BYTES``. Return False if the C library does not support that."""
    try:
        library = ctypes.CDLL(None)
        settings = {M_TRIM_THRESHOLD: KEPT_BYTES, M_MMAP_THRESHOLD: LARGEST_BYTES}
        return all(library.mallopt(what, count) == 1 for what, count in settings.items())
    except (OSError, AttributeError):
        return False
