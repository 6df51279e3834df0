"""Creation of a cluster, discovery of its nodes, recovery of its log."""
