"""Streams of rows and registers between nodes, and the mutations topic."""
