"""What the CDC log of a write is, for one write at a time."""
