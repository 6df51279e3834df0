"""The metadata log on a node: the copy that a log replica keeps, and the entries that peers send."""
