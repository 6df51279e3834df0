"""Folders that variables name, for who needs no other setting: reading these all takes a while to load."""

from __future__ import annotations

import os
from pathlib import Path


def default_data_dir() -> Path:
    """``$XDG_STATE_HOME/ringlog``, or ``~/.local/state/ringlog``."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "ringlog"


def delays_folder() -> Path | None:
    """The folder of the rules that delay the metadata log (``RINGLOG_DELAYS``); None outside tests."""
    found = os.environ.get("RINGLOG_DELAYS")
    return Path(found) if found else None
