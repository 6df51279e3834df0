"""The archive of the log, and other copies of it."""
