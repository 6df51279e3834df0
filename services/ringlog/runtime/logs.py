"""Structured logs: one event a line, on standard error, for people (``console``) or for machines (``json``).

Standard output belongs to the answer of a command; logs never go there, also where nobody has set them up: a program
that embeds a client and configures structlog by itself keeps what it configured.

structlog is loaded with the first event: it loads what shows tracebacks in colours, a sixth of what it takes to start a
command, and most commands log nothing.
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
SELDOM_S = 60.0


class LazyLogger:
    """A logger of structlog's by that name, which is made when it is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        """``debug``, ``info``, ``warning``, ``error``, ``exception``, ``critical``."""
        import structlog

        if not structlog.is_configured():
            setup_logs()
        return getattr(structlog.get_logger(self._name), method)


def get_logger(name: str) -> LazyLogger:
    """The logger of a module: ``log = get_logger(__name__)``."""
    return LazyLogger(name)


class Seldom:
    """Warns of records that are not as they should be: the first at once, then at most once in ``SELDOM_S``, with how
    many there were since (``so_far``: of all).

    Strangers send as much as they like. Nobody's disk gets full of what is said about it.
    """

    def __init__(self, log: Any, now: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._now = now
        self._seen: dict[str, tuple[int, int, float]] = {}

    def warn(self, event: str, **details: object) -> bool:
        """Say it, or count it; whether it was said."""
        count, suppressed_last, at = self._seen.get(event, (0, 0, float("-inf")))
        count, now = count + 1, self._now()
        if now - at < SELDOM_S:
            self._seen[event] = count, suppressed_last, at
            return False
        self._seen[event] = count, count, now
        more = {"since_the_last": count - suppressed_last, "so_far": count} if suppressed_last else {}
        self._log.warning(event, **details, **more)
        return True


def setup_logs(log_format: LogFormat = "console", level: str = "info", stream: TextIO | None = None) -> None:
    """Configure structlog for this process.

    ``level``: debug, info, warning, error or critical (ValueError otherwise). ``stream``: None is standard error,
    whatever that is when an event comes.
    """
    import structlog

    numbers = logging.getLevelNamesMapping()
    if level.upper() not in numbers:
        raise ValueError(f"level is one of debug, info, warning, error, critical, not {level!r}")
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
        # Line and end in one write: several agents share a file, and with PYTHONUNBUFFERED each write is its own.
        logger_factory=lambda *_: structlog.WriteLogger(sys.stderr if stream is None else stream),
        cache_logger_on_first_use=False,
    )


def _escape_controls(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escape control characters in values: a peer's text must not steer the terminal that shows the log."""
    for name, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[name] = "".join(each if each.isprintable() or each in "\n\t" else _escaped(each) for each in value)
    return event


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
