"""Rows of base tables: the state after all writes (the last write of a cell wins), and the view of a reader."""
