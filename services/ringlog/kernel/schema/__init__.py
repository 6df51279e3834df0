"""The schema: column types and how their values are written."""
