"""The metadata log on a node: the copy that a member keeps, and the entries that nodes exchange."""
