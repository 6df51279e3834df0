"""Health and metrics of an agent."""
