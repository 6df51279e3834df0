"""Metrics, health, and the HTTP server for both."""
