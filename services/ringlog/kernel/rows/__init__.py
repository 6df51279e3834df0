"""Rows of base tables: the state that writes leave, whose last write of every cell wins, and what readers see of it."""
