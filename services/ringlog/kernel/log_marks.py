"""What the state says of the log itself: epochs that were stored for readers to begin with, and how far things go."""

from __future__ import annotations

from dataclasses import dataclass

from ringlog.kernel.values import Epoch, Micros


@dataclass(frozen=True, slots=True)
class TakenSnapshot:
    """The state of ``epoch`` is one that readers may begin with, if it was stored and confirmed. ``at``: state time.

    Once it is confirmed: ``position``, the offset behind the entry that made the epoch; ``digest`` of the state;
    ``witnesses``, the roles that have it by their own folds.
    """

    epoch: Epoch
    at: Micros
    position: int = 0
    digest: str = ""
    witnesses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LogBound:
    """How far something goes that was done with the log's entries: up to ``epoch``, before the offset ``position``.

    ``digest``: of the archive's last segment, where it is the archive's.
    """

    epoch: Epoch
    position: int
    digest: str = ""
