"""Copies of tables, rebuilt from their CDC log."""
