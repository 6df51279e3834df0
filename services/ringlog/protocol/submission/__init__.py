"""Submission of commands, and the results of requests."""
