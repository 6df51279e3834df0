"""Upkeep of the log beside a role's work: snapshots, truncation, pruning."""
