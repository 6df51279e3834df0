"""CDC generations: stream ids, descriptions of a generation, look-up of a write's stream, the acceptance window."""
