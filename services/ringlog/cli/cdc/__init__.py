"""``ringlog cdc``."""
