"""Checks of the CDC log."""
