"""Structured logs: one event per line on standard error, as text for people (``console``) or as JSON (``json``).

Invariant: logs never go to standard output, which contains the result of a command. This holds even if no program has
configured logging. If a program that embeds a client has configured structlog, its configuration stays.

structlog is imported at the first event. Its import includes the renderer of colored tracebacks and takes a sixth of a
command's start time. Most commands log nothing.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Any, Literal, TextIO

if TYPE_CHECKING:
    import structlog

LogFormat = Literal["console", "json"]
WARNING_INTERVAL_S = 60.0
"""Minimum time between two warnings of the same event."""


class LazyLogger:
    """A structlog logger that is created at its first use."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        """Return a logging method: ``debug``, ``info``, ``warning``, ``error``, ``exception``, ``critical``."""
        import structlog

        if not structlog.is_configured():
            setup_logs()
        return getattr(structlog.get_logger(self._name), method)


def get_logger(name: str) -> LazyLogger:
    """Return the logger of a module: ``log = get_logger(__name__)``."""
    return LazyLogger(name)


class RateLimitedWarnings:
    """A rate limit for warnings about records.

    It logs the first warning at once, then at most one per ``WARNING_INTERVAL_S`` with the number of suppressed ones
    (``so_far``: the total). Other clients can send any number of bad records, and the warnings must not fill the disk.
    """

    def __init__(self, log: Any, now: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._now = now
        self._seen: dict[str, tuple[int, int, float]] = {}

    def warn(self, event: str, **details: object) -> bool:
        """Log or count a warning. Return True if it was logged."""
        count, suppressed_last, at = self._seen.get(event, (0, 0, float("-inf")))
        count, now = count + 1, self._now()
        if now - at < WARNING_INTERVAL_S:
            self._seen[event] = count, suppressed_last, at
            return False
        self._seen[event] = count, count, now
        more = {"since_the_last": count - suppressed_last, "so_far": count} if suppressed_last else {}
        self._log.warning(event, **details, **more)
        return True


def setup_logs(log_format: LogFormat = "console", level: str = "info", stream: TextIO | None = None) -> None:
    """Configure structlog for this process.

    Args:
        level: debug, info, warning, error or critical; otherwise ValueError.
        stream: None: the standard error stream at the time of each event.
    """
    import structlog

    numbers = logging.getLevelNamesMapping()
    if level.upper() not in numbers:
        raise ValueError(f"level must be one of debug, info, warning, error, critical, not {level!r}")
    out = stream if stream is not None else sys.stderr
    renderers: tuple[structlog.types.Processor, ...]
    if log_format == "json":
        renderers = (structlog.processors.JSONRenderer(sort_keys=True),)
    else:
        renderers = (_escape_controls, structlog.dev.ConsoleRenderer(colors=out.isatty()))
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            *renderers,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(numbers[level.upper()]),
        # Write text and line end in one call. Several agents share a file, and with PYTHONUNBUFFERED each call is a
        # separate write.
        logger_factory=lambda *_: structlog.WriteLogger(sys.stderr if stream is None else stream),
        cache_logger_on_first_use=False,
    )


def _escape_controls(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escape control characters in values. Text from a peer must not control the terminal that shows the log."""
    for name, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[name] = "".join(each if each.isprintable() or each in "\n\t" else _escaped(each) for each in value)
    return event


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
