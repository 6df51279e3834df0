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
    match value.strategy:
        case "network" | "tablets" if value.datacenters:
            local = {one.datacenter: list(one.racks) or one.factor for one in value.datacenters}
            return {"strategy": value.strategy, "datacenters": local}
        case "entire":
            return {"strategy": value.strategy}
        case "zone":
            return {"strategy": value.strategy, "zone": value.zone}
        case _:
            return {"strategy": value.strategy, "factor": value.factor}


def replication_words(value: Mapping[str, Any]) -> str:
    """What one would type for the setting that this JSON is."""
    if value["strategy"] == "tablets":
        return TABLETS + replication_words({**value, "strategy": "network" if "datacenters" in value else "simple"})
    if value["strategy"] == "zone":
        return ZONE + str(value["zone"])
    if value["strategy"] != "network":
        return str(value.get("factor", value["strategy"]))
    items = value["datacenters"].items()
    return ",".join(f"{name}={'+'.join(one) if isinstance(one, list) else one}" for name, one in items)
