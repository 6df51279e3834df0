"""A stack whose broker wants no log-in, for tests and benchmarks with Kafka clients of their own."""

from __future__ import annotations

from pathlib import Path

from ringlog.stack import Stack
from ringlog.stack.layout import StackLayout
from ringlog.stack.log_in import CLIENTS, CONTROLLER

PLAIN = {"listener.security.protocol.map": f"{CLIENTS}:PLAINTEXT,{CONTROLLER}:PLAINTEXT"}


def plain_stack(folder: Path) -> Stack:
    """The stack of this folder, whose own settings win over the log-in."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"{name}={value}\n" for name, value in PLAIN.items())
    StackLayout(folder).own_properties.write_text(lines, encoding="utf-8")
    return Stack(folder)
