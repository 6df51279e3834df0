"""Roles that follow the log: the change publisher and the cache writer."""
