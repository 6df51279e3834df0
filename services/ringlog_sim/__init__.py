"""Seeded worlds and exhaustive searches: what the production decisions do when everything else goes wrong."""
