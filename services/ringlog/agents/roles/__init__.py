"""The threads that perform what the protocols ask for, one module per role."""
