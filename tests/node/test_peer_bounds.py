"""What peers show of the log while that is away does not fill a node's memory."""

from __future__ import annotations

import pytest

from ringlog.node import hints as bounds
from ringlog.node.hints import PeerHints
from tests.kernel.commands.test_service import THREE, TWO
from tests.node.test_peers import Driver, fold_on, noops


def test_what_is_shown_and_not_folded_yet_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often peers are asked while the log is away: a page may go beyond it, and then nobody is asked."""
    monkeypatch.setattr(bounds, "SHOWN_MAX", 5)
    _, history = noops(60)
    own = history.states[-61]
    driver = Driver(own, [own.epoch + 99] * 20, [None] * 20)
    driver.sides = {node: history.side(node, page_bytes=1) for node in (TWO, THREE)}
    hints = PeerHints(fold_on)
    done = driver.run(hints, history.at)
    assert hints.is_full
    assert hints.known == own.epoch + 5
    assert sum(one in (TWO, THREE) for one in done) == 5
