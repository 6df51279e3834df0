"""The threads that perform the effects of the protocols, one module per role."""
