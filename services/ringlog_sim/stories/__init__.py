"""The stories of simulated clusters, one module per story."""
