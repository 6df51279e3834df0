"""Canonical bytes of a state, their digests, and the way back."""
