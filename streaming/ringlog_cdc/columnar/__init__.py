"""Vectorized routing: mutations are parsed and CDC rows encoded as columns, with numpy and Arrow on whole batches."""
