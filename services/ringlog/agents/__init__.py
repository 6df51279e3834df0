"""The agents: processes that perform the protocols of their roles (``ringlog.protocol``), in threads under faust."""
