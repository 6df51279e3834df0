"""Readers of topics and lake tables for the audit."""
