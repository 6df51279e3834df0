"""Submission of commands and what becomes of them."""
