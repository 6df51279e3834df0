"""Columns that behave like tuples, and the caches and constructors they need for speed."""
