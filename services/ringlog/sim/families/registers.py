"""Reads and writes of registers: no commands, but what the range movements of other families must never break."""

from __future__ import annotations

from ringlog.sim.checks.registers import Histories, RegistersCheck
from ringlog.sim.families.family import Family

FAMILY = Family(name="registers", commands={}, checks=(Histories, RegistersCheck))
