"""A stack whose broker needs no login, for tests and benchmarks with their own Kafka clients."""

from __future__ import annotations

from pathlib import Path

from ringlog.stack import Stack
from ringlog.stack.layout import StackLayout
from ringlog.stack.log_in import CLIENTS, CONTROLLER

PLAIN = {"listener.security.protocol.map": f"{CLIENTS}:PLAINTEXT,{CONTROLLER}:PLAINTEXT"}


def plain_stack(folder: Path) -> Stack:
    """Return the stack of this folder; its own settings override the login."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"{name}={value}\n" for name, value in PLAIN.items())
    StackLayout(folder).own_properties.write_text(lines, encoding="utf-8")
    return Stack(folder)
