"""Checks of registers and rows on nodes."""
