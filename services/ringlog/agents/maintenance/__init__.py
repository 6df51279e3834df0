"""Maintenance of the log in addition to a role's work: snapshots, truncation, pruning."""
