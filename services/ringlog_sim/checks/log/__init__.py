"""Checks of the log, the metadata service and its followers."""
