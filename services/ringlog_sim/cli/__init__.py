"""``ringlog sim``."""
