"""``ringlog data``."""
