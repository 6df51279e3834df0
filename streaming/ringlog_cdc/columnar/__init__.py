"""Mutations read and CDC rows written as columns: numpy and Arrow on whole batches, no loop over rows."""
