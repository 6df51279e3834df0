"""A cluster in memory for tests of programs that use Ringlog."""
