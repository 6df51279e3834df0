"""Runs: scripts, seeds, search, shrinking, coverage."""
