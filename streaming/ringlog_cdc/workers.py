"""What a Python worker of Spark does around every task, and how it is spared.

A worker that is kept for the next task begins each with ``importlib.invalidate_caches``: every importer of a zip file
(PySpark comes as two, and one importer stands for each of its packages) reads the whole directory of its file again. It
ends each task with a full garbage collection, which goes through all objects of all modules. Together that took three
times as long as the rows of a batch of 100,000 (``py-spy``). Neither is of use to a function whose modules are loaded.
"""

from __future__ import annotations

import gc
import sys
import zipimport
from functools import cache


def settle() -> None:
    """To be called in each task: forgets importers of zip files, which come back when something has to be imported, and
    takes what is loaded by now out of the sight of the collector.
    """
    importers = sys.path_importer_cache
    for path in [path for path, finder in importers.items() if isinstance(finder, zipimport.zipimporter)]:
        del importers[path]
    _freeze()


@cache
def _freeze() -> None:
    """Once a process: what is made later may be collected."""
    gc.collect()
    gc.freeze()
