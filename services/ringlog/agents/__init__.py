"""The agents: threads under faust that perform the protocols of their roles (``ringlog.protocol``)."""
