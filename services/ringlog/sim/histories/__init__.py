"""Histories: what clients asked and were told, as JSON lines, and whether one order of it all explains every answer."""
