"""A second implementation of the rules of the CDC log."""
