"""Roles that follow the log: change publisher and cache writer."""
