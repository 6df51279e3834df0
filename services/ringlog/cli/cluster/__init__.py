"""``ringlog cluster``."""
