"""Plans run offline, and charts of their balance."""
