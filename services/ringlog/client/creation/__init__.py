"""Creation, discovery and recovery of a cluster."""
