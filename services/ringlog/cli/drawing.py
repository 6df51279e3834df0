"""Pictures that commands write."""

from __future__ import annotations

from pathlib import Path

from ringlog.cli.connection import fail
from ringlog.operator.balance_film import BalanceFilm
from ringlog.operator.balance_picture import SECONDS, picture


def draw(path: Path, film: BalanceFilm, unit: str = SECONDS) -> None:
    """Write the film's picture; ends the command if there is nothing to draw, or the file cannot be written."""
    if not film.moments:
        fail("no_tablets", "no table had tablets, so there is nothing to draw", 2)
    try:
        path.write_text(picture(film, unit), encoding="utf-8")
    except OSError as error:
        fail("bad_file", f"{path}: {error.strerror}", 2)
