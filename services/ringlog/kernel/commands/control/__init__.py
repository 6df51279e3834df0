"""Commands that pause changes or override rules in a recovery."""
