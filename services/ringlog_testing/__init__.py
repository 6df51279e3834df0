"""Tools for tests of distributed stores: histories and their checker, quorum exploration."""
