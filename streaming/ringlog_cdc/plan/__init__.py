"""Batch plans: decisions of a driver that a successor repeats."""
