"""Replication settings as people type them.

``3``: so many replicas, wherever (SimpleStrategy). ``dc1=3,dc2=2``: so many in each datacenter, in different racks as
far as there are (NetworkTopologyStrategy). ``dc1=rack1+rack2``: one in each of these racks. ``entire``: one on every
node.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ringlog.cli.connection import fail

Factor = Annotated[int | None, typer.Option(help="Number of replicas (SimpleStrategy).")]
Setting = Annotated[
    str | None,
    typer.Option(
        "--replication",
        metavar="SETTING",
        help="Replicas by datacenter: dc1=3,dc2=2 or dc1=rack1+rack2; or entire: one on every node.",
    ),
]


def given_replication(factor: int | None, setting: str | None) -> dict[str, Any]:
    """The JSON of a setting, of the one option that was given; exit status 2 if it is none."""
    if (factor is None) == (setting is None):
        fail("bad_usage", "give either --factor or --replication", 2)
    if setting is None:
        return {"strategy": "simple", "factor": factor}
    if setting == "entire":
        return {"strategy": "entire"}
    if setting.isdecimal():
        return {"strategy": "simple", "factor": int(setting)}
    datacenters: dict[str, Any] = {}
    for part in setting.split(","):
        name, equals, wanted = part.partition("=")
        if not (name and equals and wanted) or name in datacenters:
            expected = "DATACENTER=NUMBER or DATACENTER=RACK+RACK, each datacenter once"
            fail("bad_usage", f"--replication {part!r}: expected {expected}", 2)
        datacenters[name] = int(wanted) if wanted.isdecimal() else wanted.split("+")
    return {"strategy": "network", "datacenters": datacenters}


def replication_words(value: dict[str, Any]) -> str:
    """The same the other way round: what ``--replication`` takes."""
    if value["strategy"] != "network":
        return str(value.get("factor", value["strategy"]))
    items = value["datacenters"].items()
    return ",".join(f"{name}={'+'.join(one) if isinstance(one, list) else one}" for name, one in items)
