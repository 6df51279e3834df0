"""Acknowledgements, load reports, health and metrics of a node."""
