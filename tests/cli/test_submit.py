"""``ringlog submit`` and ``ringlog tablet``: both refuse a decision that the balancer would undo."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from ringlog.cli import json_commands
from ringlog.cli.main import app
from ringlog.cli.placement import tablet
from ringlog.kernel.values import replace
from tests.kernel.balance.test_advice import PILED

AT = ("--bootstrap", "localhost:1", "--cluster", "c")
RAW = json.dumps({"command": "DecideResize", "table": "ks.t", "decision": "merge"})


@pytest.mark.parametrize("words", [("submit", RAW), ("tablet", "merge", "ks.t")], ids=["submit", "tablet"])
def test_changes_against_the_balancer_are_refused(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    state = replace(PILED, settings=PILED.settings.set("balance_tablets_per_shard_min", 2))
    for module in (json_commands, tablet):
        monkeypatch.setattr(module, "newest", lambda _: state)
    monkeypatch.setattr(tablet, "read_load_reports", lambda *_: ())
    result = CliRunner().invoke(app, [*words, *AT])
    assert (result.exit_code, result.stderr.split(":")[0]) == (1, "decision_undone")
