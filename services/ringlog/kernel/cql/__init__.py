"""CQL types: their names, literals, order and the bytes of their values."""
