"""The simulated CDC job, its consumers and producers."""
