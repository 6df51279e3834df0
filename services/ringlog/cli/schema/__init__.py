"""``ringlog keyspace``, ``table``, ``ddl`` and ``schema``."""
