"""Checks of tablets, zones and the balancer."""
