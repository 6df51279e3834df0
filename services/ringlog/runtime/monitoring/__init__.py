"""Metrics, health and the small server that shows them."""
