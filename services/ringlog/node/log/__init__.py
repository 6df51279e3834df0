"""A node's copy of the log, and the log as peers show it."""
