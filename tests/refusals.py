"""Checks of an error and its code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def raises_code(kind: type[Exception], code: str, match: str | None = None) -> Iterator[None]:
    """Like ``pytest.raises``, and check the error's code."""
    with pytest.raises(kind, match=match) as caught:
        yield
    assert caught.value.code == code  # type: ignore[attr-defined]
