"""The validator: requests in, entries and answers out."""
