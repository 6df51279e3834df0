"""Commands for an upgrade: ``ringlog cluster require-feature``, ``features`` and ``enable-feature``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ringlog import FEATURES
from ringlog.kernel.commands.topology.movements import Join
from ringlog.kernel.commands.topology.nodes import UpdateNode
from ringlog.protocol.submission.results import AppliedResult, RejectedResult
from tests.cli.authoring import authoring, run
from tests.kernel.entries import NODES, SEED, node


def test_an_old_release_cannot_enter_during_an_upgrade(monkeypatch: pytest.MonkeyPatch) -> None:
    """This release registers its feature in a cluster with one node of an earlier release."""
    (name,) = FEATURES
    with authoring(monkeypatch) as client:

        def shown() -> Any:
            status, out, _ = run("cluster", "features", "--json")
            assert status == 0
            return json.loads(out)

        for command in (node(1), Join(NODES[0], (7,), SEED)):
            assert isinstance(client.submit(command), AppliedResult)
        assert shown() == [{"name": name, "required": None, "enabled": None, "lacked_by": ["n1"]}]
        assert run("cluster", "require-feature", name)[0] == 0
        since = client.read_barrier().epoch
        assert shown() == [{"name": name, "required": since, "enabled": None, "lacked_by": ["n1"]}]
        refused = client.submit(node(2))
        assert isinstance(refused, RejectedResult)
        assert refused.code == "feature_missing"
        assert run("cluster", "require-feature", name, "--withdraw")[0] == 0
        assert isinstance(client.submit(node(2)), AppliedResult)
        assert run("cluster", "require-feature", name)[0] == 0
        client.submit(UpdateNode(NODES[0], features=FEATURES))
        assert run("cluster", "enable-feature", name)[0] == 0
        assert run("cluster", "require-feature", name, "--withdraw")[2].startswith("feature_enabled: ")
        _, table, _ = run("cluster", "features")
        assert "required at epoch" in table
