"""Bulk processing of mutations in Spark's Python workers, on numpy and Arrow."""
