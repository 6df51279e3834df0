"""The simulator: seeded worlds that run the production decisions under injected faults."""
