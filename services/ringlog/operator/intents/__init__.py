"""Operators' wishes as commands: names, tokens, JSON."""
