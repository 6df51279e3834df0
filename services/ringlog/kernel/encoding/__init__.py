"""Canonical bytes of a state, their digests, and their decoder."""
