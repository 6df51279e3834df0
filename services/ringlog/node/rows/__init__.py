"""Rows of a node: storage, validation of writes, reads and compaction."""
