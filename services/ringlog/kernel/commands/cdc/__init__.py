"""Commands on CDC generations and writers."""
