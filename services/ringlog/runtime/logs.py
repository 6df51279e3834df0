"""Structured logs: one event a line, on standard error, for people (``console``) or for machines (``json``).

Standard output belongs to the answer of a command; logs never go there.
"""

from __future__ import annotations

import logging
import sys
from typing import Literal, TextIO

import structlog

LogFormat = Literal["console", "json"]


def setup_logs(log_format: LogFormat = "console", level: str = "info", stream: TextIO | None = None) -> None:
    """Configure structlog for this process.

    ``level``: debug, info, warning, error or critical (ValueError otherwise).
    """
    numbers = logging.getLevelNamesMapping()
    if level.upper() not in numbers:
        raise ValueError(f"level is one of debug, info, warning, error, critical, not {level!r}")
    out = stream if stream is not None else sys.stderr
    renderer: structlog.types.Processor
    if log_format == "json":
        renderer = structlog.processors.JSONRenderer(sort_keys=True)
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=out.isatty())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(numbers[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(file=out),
        cache_logger_on_first_use=False,
    )
