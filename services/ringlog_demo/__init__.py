"""The demo: one run of the whole system on real components and real data."""
