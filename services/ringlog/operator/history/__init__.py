"""The history of the log: its entries, and the state at a past epoch."""
