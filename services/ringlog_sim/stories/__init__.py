"""What befalls a simulated cluster, one module a story."""
