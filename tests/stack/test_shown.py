"""What ``ringlog stack`` shows at the terminal: places are there to be copied, so none is cut off."""

from __future__ import annotations

import pytest

from ringlog.stack.cli import _show_info, _show_status
from ringlog.stack.report import ChildStatus, StackInfo, StackStatus

FOLDER = "/srv/far/from/the/root/of/the/disk/where/somebody/has/a/folder/for/it/ringlog/stack"
SOCKET = f"{FOLDER}/redis/redis.sock"


def test_up_shows_whole_places(capsys: pytest.CaptureFixture[str]) -> None:
    info = StackInfo("127.0.0.1:9092", f"unix://{SOCKET}", FOLDER, 1, 2, 3, "default", 10.0)
    _show_info(info, 1.0)
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in shown[1:]] == [
        ["kafka", "127.0.0.1:9092"],
        ["redis", f"unix://{SOCKET}"],
        ["data", FOLDER],
    ]


def test_status_shows_whole_places(capsys: pytest.CaptureFixture[str]) -> None:
    broker, redis = (
        ChildStatus(name, True, True, place, 1, None) for name, place in (("broker", ""), ("redis", SOCKET))
    )
    _show_status(StackStatus(True, FOLDER, "default", 1, broker, redis, 10))
    rows = [line.split("│")[3].strip() for line in capsys.readouterr().out.splitlines() if line.count("│") == 5]
    assert SOCKET in "".join(rows)
