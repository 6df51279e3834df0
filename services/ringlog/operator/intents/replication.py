"""Replication settings: as text, as JSON, and as the value in a command.

- ``3``: three replicas on any nodes (SimpleStrategy).
- ``dc1=3,dc2=2``: this number in each datacenter, in different racks if possible (NetworkTopologyStrategy).
- ``dc1=rack1+rack2``: one replica in each of these racks.
- ``entire``: a replica on every node.
- ``tablets:`` before a number or datacenters: replicas of each tablet.
- ``zone:NAME``: the replicas of that zone's partitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ringlog.kernel.ownership.kinds import STRATEGIES
from ringlog.kernel.values import DatacenterReplication, Replication, replace

ENTIRE = Replication("entire", 0)
TABLETS = "tablets:"
"""The prefix of a setting for tables in tablets."""
ZONE = "zone:"
"""The prefix of a zone name."""


def network(datacenters: Mapping[str, int | Sequence[str]]) -> Replication:
    """Return the replication for a factor or a list of racks in each datacenter, sorted as commands require."""
    found = []
    for name, wanted in sorted(datacenters.items()):
        racks = () if isinstance(wanted, int) else tuple(sorted(wanted))
        found.append(DatacenterReplication(name, wanted if isinstance(wanted, int) else len(racks), racks))
    return Replication("network", sum(local.factor for local in found), tuple(found))


def in_zone(name: str) -> Replication:
    """Return the replication that follows a zone."""
    return Replication("zone", 0, zone=name)


def parse_setting(setting: str) -> Replication:
    """Parse a setting. Raises ValueError with the expected form."""
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
    """Return a replication as JSON."""
    found: dict[str, Any] = {"strategy": value.strategy}
    strategy = STRATEGIES.get(value.strategy)
    if strategy is not None and strategy.has_datacenters and value.datacenters:
        return found | {"datacenters": {one.datacenter: list(one.racks) or one.factor for one in value.datacenters}}
    if strategy is None or strategy.has_factor or strategy.has_datacenters:  # another release's has a factor
        return found | {"factor": value.factor}
    return found | ({"zone": value.zone} if strategy.by_zone else {})


def format_replication(value: Mapping[str, Any]) -> str:
    """Return the text form of a replication given as JSON."""
    if "zone" in value:
        return ZONE + str(value["zone"])
    before = TABLETS if value["strategy"] == "tablets" else ""
    if "datacenters" not in value:
        return before + str(value.get("factor", value["strategy"]))
    items = value["datacenters"].items()
    return before + ",".join(f"{name}={'+'.join(one) if isinstance(one, list) else one}" for name, one in items)
