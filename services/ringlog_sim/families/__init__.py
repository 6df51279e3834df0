"""The registry that adds parts of Ringlog to the simulator.

A family is a group of commands with its tests: how an operator draws each command for the current state, and the checks
with their simple models. To add commands, write ``families/<name>.py`` with a ``FAMILY`` and add it to ``FAMILIES``
below. If the commands have their own processes, put these under ``actors``. A test compares the families with the
kernel's commands: each command must belong to exactly one family.
"""

from __future__ import annotations

from ringlog_sim.checks.base import Check, Family
from ringlog_sim.checks.data.registers import Histories, RegistersCheck
from ringlog_sim.checks.data.row_reads import RowReadsCheck
from ringlog_sim.checks.log.members import Members
from ringlog_sim.checks.log.peers import PeersCheck
from ringlog_sim.checks.log.replicas import StateInvariants
from ringlog_sim.families import cdc, cluster, operations, principals, schema, tablets, zones

REGISTERS = Family(name="registers", commands={}, checks=(Histories, RegistersCheck, RowReadsCheck, PeersCheck))
"""Reads and writes of registers, reads of rows, peers. It has no commands, but range movements must never
break these.
"""

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
"""The metadata service and recoveries, only in the profile of members (``ringlog_sim.stories.members``).

In all other profiles the nodes keep no copy of the log.
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
    principals.FAMILY,
)

CHECKS: tuple[type[Check], ...] = (*(check for family in FAMILIES for check in family.checks), StateInvariants)
"""The checks of the families, each with its own model, and after them the kernel's invariants."""
