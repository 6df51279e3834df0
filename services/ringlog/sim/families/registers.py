"""Reads and writes of registers, reads of rows, peers: no commands, but what range movements must never break."""

from __future__ import annotations

from ringlog.sim.checks.peers import PeersCheck
from ringlog.sim.checks.registers import Histories, RegistersCheck
from ringlog.sim.checks.row_reads import RowReadsCheck
from ringlog.sim.families.family import Family

FAMILY = Family(name="registers", commands={}, checks=(Histories, RegistersCheck, RowReadsCheck, PeersCheck))
