"""``ringlog log``, ``snapshot``, ``recover``, ``service`` and ``pause``."""
