"""Rehearsals: plans that run offline, and charts of the balance over time."""
