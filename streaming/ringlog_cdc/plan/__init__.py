"""Batch plans: decisions of a driver that its successor repeats."""
