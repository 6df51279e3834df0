"""Histories of client operations as JSON lines, and a linearizability checker for them."""
