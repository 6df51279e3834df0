"""Files of frames (``ringlog.node.frames``) on the disk: whole and synced before they have their name."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from ringlog.durable import sync_folder
from ringlog.node.frames import Sealer

SLICE_BYTES = 1024 * 1024
PAUSE_S_MAX = 0.25
FRESH = ".new"

Pause = Callable[[float], object]
"""Waits at most N seconds."""


def write_frames(path: Path, payloads: Iterable[bytes], pause: Pause = lambda _: None) -> int:
    """Have a file of these payloads on the disk, whole before it has its name; its size. Raises OSError.

    ``pause`` is called between slices, with the time that the last one took.
    """
    fresh = path.with_suffix(FRESH)
    sealer = Sealer.new()
    part, size, begun = bytearray(sealer.head()), 0, time.monotonic()
    with fresh.open("wb", buffering=0) as out:
        for payload in payloads:
            part += sealer.frame(payload, 0, size + len(part))
            if len(part) >= SLICE_BYTES:
                size += write_whole(out.fileno(), part)
                os.fdatasync(out.fileno())
                pause(min(time.monotonic() - begun, PAUSE_S_MAX))
                part, begun = bytearray(), time.monotonic()
        size += write_whole(out.fileno(), part)
        out.seek(0)
        write_whole(out.fileno(), sealer.head(born=size))
        os.fsync(out.fileno())
    fresh.replace(path)
    sync_folder(path.parent)
    return size


def write_whole(file: int, data: bytes | bytearray) -> int:
    """Write it all; its size. Raises OSError."""
    out = memoryview(data)
    while out:
        out = out[os.write(file, out) :]
    return len(data)
