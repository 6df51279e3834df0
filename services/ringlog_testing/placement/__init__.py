"""Random movements of a ring in memory, compared with an independent model (``ringlog sim placement``)."""
