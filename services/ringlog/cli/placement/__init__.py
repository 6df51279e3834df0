"""``ringlog tablet``, ``balance`` and ``zone``."""
