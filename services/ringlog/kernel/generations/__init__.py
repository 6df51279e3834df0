"""CDC generations: stream ids, description of a generation, lookup of a write's stream, acceptance window."""
