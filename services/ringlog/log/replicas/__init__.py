"""Replicas of the state: reading, folding, waiting, identity."""
