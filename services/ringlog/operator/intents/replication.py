"""Replication settings as people type them, as JSON, and as the value of a command.

``3``: three replicas, wherever (SimpleStrategy). ``dc1=3,dc2=2``: that number in each datacenter, in different racks as
far as there are (NetworkTopologyStrategy). ``dc1=rack1+rack2``: one in each of these racks. ``entire``: one on every
node. ``tablets:`` before a number or datacenters: replicas of each tablet. ``zone:NAME``: where the partitions of that
zone are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ringlog.kernel.ownership.kinds import STRATEGIES
from ringlog.kernel.values import DatacenterReplication, Replication

ENTIRE = Replication("entire", 0)
TABLETS = "tablets:"
"""Before a setting: not by the token ring, but in tablets."""
ZONE = "zone:"
"""Before the name of a zone."""


def network(datacenters: Mapping[str, int | Sequence[str]]) -> Replication:
    """A factor or a list of racks for each datacenter; both in the order that commands have them."""
    found = []
    for name, wanted in sorted(datacenters.items()):
        racks = () if isinstance(wanted, int) else tuple(sorted(wanted))
        found.append(DatacenterReplication(name, wanted if isinstance(wanted, int) else len(racks), racks))
    return Replication("network", sum(local.factor for local in found), tuple(found))


def in_zone(name: str) -> Replication:
    """Placed by the zone of that name."""
    return Replication("zone", 0, zone=name)


def parse_setting(setting: str) -> Replication:
    """A setting as it is typed. Raises ValueError with what was expected."""
    if setting == "entire":
        return ENTIRE
    if setting.startswith(TABLETS):
        return replace(parse_setting(setting.removeprefix(TABLETS)), strategy="tablets")
    if setting.startswith(ZONE):
        return in_zone(setting.removeprefix(ZONE))
    if setting.isdecimal():
        return Replication("simple", int(setting))
    datacenters: dict[str, int | Sequence[str]] = {}
    for part in setting.split(","):
        name, equals, wanted = part.partition("=")
        if not (name and equals and wanted) or name in datacenters:
            expected = "DATACENTER=NUMBER or DATACENTER=RACK+RACK, each datacenter once"
            raise ValueError(f"{part!r}: expected {expected}")
        datacenters[name] = int(wanted) if wanted.isdecimal() else wanted.split("+")
    return network(datacenters)


def replication_json(value: Replication) -> dict[str, Any]:
    """The JSON of a setting."""
    found: dict[str, Any] = {"strategy": value.strategy}
    strategy = STRATEGIES.get(value.strategy)
    if strategy is not None and strategy.has_datacenters and value.datacenters:
        return found | {"datacenters": {one.datacenter: list(one.racks) or one.factor for one in value.datacenters}}
    if strategy is None or strategy.has_factor or strategy.has_datacenters:  # another release's has a factor
        return found | {"factor": value.factor}
    return found | ({"zone": value.zone} if strategy.by_zone else {})


def format_replication(value: Mapping[str, Any]) -> str:
    """What one would type for the setting that this JSON is."""
    if "zone" in value:
        return ZONE + str(value["zone"])
    before = TABLETS if value["strategy"] == "tablets" else ""
    if "datacenters" not in value:
        return before + str(value.get("factor", value["strategy"]))
    items = value["datacenters"].items()
    return before + ",".join(f"{name}={'+'.join(one) if isinstance(one, list) else one}" for name, one in items)
