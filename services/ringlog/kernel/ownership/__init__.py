"""Ownership of ranges: canonical layouts, the live placements, and the deltas between them."""
