"""Distribution zones: partitions of data on sets of nodes, and how a zone moves from one set to another."""
