"""The schema beyond the tables: versions, dependents, stored columns, bounds in bytes."""
