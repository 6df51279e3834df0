"""Delays and losses of log entries, for tests."""
