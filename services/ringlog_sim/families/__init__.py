"""THE PLACE where a part of Ringlog joins the simulator.

A family is a group of commands with everything that proves them: how an operator draws each command on the present
state, and the checks with their simple models. To bring new commands in: write
``families/<name>.py`` with a ``FAMILY``, name it in ``FAMILIES`` below, and, if the commands have processes of their
own, put these under ``actors``. A test compares the families with the kernel's vocabulary: a command that belongs to
none, or to two, fails it.
"""

from __future__ import annotations

from ringlog_sim.checks.base import Check, Family
from ringlog_sim.checks.data.registers import Histories, RegistersCheck
from ringlog_sim.checks.data.row_reads import RowReadsCheck
from ringlog_sim.checks.log.members import Members
from ringlog_sim.checks.log.peers import PeersCheck
from ringlog_sim.checks.log.replicas import StateInvariants
from ringlog_sim.families import cdc, cluster, operations, schema, tablets, zones

REGISTERS = Family(name="registers", commands={}, checks=(Histories, RegistersCheck, RowReadsCheck, PeersCheck))
"""Reads and writes of registers, reads of rows, peers: no commands, but range movements must never break them."""

SERVICE = Family(
    name="service",
    commands=dict.fromkeys(
        (
            "AddServiceMember",
            "RemoveServiceMember",
            "ReconfigureService",
            "AdvanceService",
            "EnterRecovery",
            "LeaveRecovery",
            "ForceState",
        )
    ),
    checks=(Members,),
)
"""The metadata service and recoveries. Only the profile of members has them (``ringlog_sim.stories.members``): in all
others the nodes keep no copy of the log.
"""

FAMILIES: tuple[Family, ...] = (
    cluster.FAMILY,
    operations.FAMILY,
    schema.FAMILY,
    tablets.FAMILY,
    cdc.FAMILY,
    REGISTERS,
    zones.FAMILY,
    SERVICE,
)

CHECKS: tuple[type[Check], ...] = (*(check for family in FAMILIES for check in family.checks), StateInvariants)
"""Those of the families, each with a model of its own, and after them the kernel's invariants."""
