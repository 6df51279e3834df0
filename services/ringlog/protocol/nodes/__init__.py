"""The duties of data nodes, for the reference node and for other stores."""
