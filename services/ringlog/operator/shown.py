"""Values as others may see them: fields of an object as JSON has them, texts of others as a terminal may show them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def picked(item: object, *names: str) -> dict[str, Any]:
    """These fields under their own names; what a tuple holds is a list."""
    values = ((name, getattr(item, name)) for name in names)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values}


def when(micros: int) -> str:
    """Microseconds since 1970 as date and time; as a number where no calendar has them."""
    found = _instant(micros)
    return f"{micros} µs" if found is None else found.strftime("%Y-%m-%d %H:%M:%S.%f UTC")


def time_of_day(micros: int) -> str:
    """Microseconds since 1970 as the time of their day, to the millisecond; as a number where no calendar has them."""
    found = _instant(micros)
    return f"{micros} µs" if found is None else found.strftime("%H:%M:%S.%f")[:-3]


def _instant(micros: int) -> datetime | None:
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return None


def lifetime(amount: int | None, a_second: int = 1_000) -> str:
    """How long something is kept. ``units``: in a second; None or -1: for ever."""
    return "for ever" if amount is None or amount < 0 else f"{amount / a_second:,.0f} s"


def printable(text: str) -> str:
    """The text with a mark in the place of everything that would steer the terminal instead of being seen."""
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text)
