"""Checks of range movements, layouts and quorums."""
