"""Simulated nodes and the programs that read and write on them."""
