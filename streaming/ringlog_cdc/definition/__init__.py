"""Definition of the CDC log for a single write."""
