"""The rules of the CDC log, written a second time."""
