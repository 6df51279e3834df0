"""Registers and held requests on threads."""
