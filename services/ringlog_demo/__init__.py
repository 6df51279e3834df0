"""The demonstration: the whole system, once, on real components and real data."""
