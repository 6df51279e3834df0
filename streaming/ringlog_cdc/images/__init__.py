"""Preimages and postimages: the stored states of rows, and the log rows made from them."""
