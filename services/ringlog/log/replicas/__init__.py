"""Replicas of the state: start, identity of the log, waits, subscriptions."""
