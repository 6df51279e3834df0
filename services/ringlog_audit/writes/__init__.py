"""The writes of a cluster, and what must become of each."""
