"""Commands on nodes and range movements."""
