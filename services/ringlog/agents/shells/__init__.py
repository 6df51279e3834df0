"""The threads that perform what the pure cores decide, one module per role."""
