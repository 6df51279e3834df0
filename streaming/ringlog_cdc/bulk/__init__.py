"""The bulk path: many mutations at once, on numpy and Arrow."""
