"""THE PLACE where a part of Ringlog joins the simulator.

A family is a group of commands with everything that proves them: how an operator draws each command on the present
state, and the checks with their simple models. To bring new commands in: write
``families/<name>.py`` with a ``FAMILY``, name it in ``FAMILIES`` below, and, if the commands have processes of their
own, put these under ``actors``. A test compares the families with the kernel's vocabulary: a command that belongs to
none, or to two, fails it.
"""

from __future__ import annotations

from ringlog.sim.checks.base import Check
from ringlog.sim.checks.sound import Sound
from ringlog.sim.families import cdc, cluster, operations, registers, schema, service, tablets, zones
from ringlog.sim.families.family import Family

FAMILIES: tuple[Family, ...] = (
    cluster.FAMILY,
    operations.FAMILY,
    schema.FAMILY,
    tablets.FAMILY,
    cdc.FAMILY,
    registers.FAMILY,
    zones.FAMILY,
    service.FAMILY,
)

CHECKS: tuple[type[Check], ...] = (*(check for family in FAMILIES for check in family.checks), Sound)
"""Those of the families, each with a model of its own, and after them the kernel's invariants."""
