"""Past states: the log entry by entry, the state at an epoch."""
