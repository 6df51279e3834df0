"""``ringlog node`` and ``ringlog operation``."""
