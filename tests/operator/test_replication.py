"""Replication settings as people type them, there and back."""

from __future__ import annotations

from typing import Any

import pytest

from ringlog.kernel.values import Replication
from ringlog.operator.replication import parse_setting, replication_json, replication_words


@pytest.mark.parametrize(
    ("setting", "replication"),
    [
        ("3", {"strategy": "simple", "factor": 3}),
        ("entire", {"strategy": "entire"}),
        ("dc1=3", {"strategy": "network", "datacenters": {"dc1": 3}}),
        ("dc1=3,dc2=r1+r2", {"strategy": "network", "datacenters": {"dc1": 3, "dc2": ["r1", "r2"]}}),
        ("dc1=r1", {"strategy": "network", "datacenters": {"dc1": ["r1"]}}),
        ("zone:z", {"strategy": "zone", "zone": "z"}),
    ],
)
def test_there_and_back(setting: str, replication: dict[str, Any]) -> None:
    assert replication_json(parse_setting(setting)) == replication
    assert replication_words(replication) == setting


def test_a_number_of_replicas() -> None:
    assert parse_setting("2") == Replication("simple", 2)


@pytest.mark.parametrize("setting", ["dc1", "dc1=", "=3", "dc1=3,dc1=2", "dc1=3,"])
def test_what_is_no_setting(setting: str) -> None:
    with pytest.raises(ValueError, match="expected DATACENTER=NUMBER or"):
        parse_setting(setting)
