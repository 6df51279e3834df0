"""The coordinator: acknowledgements in, next steps out."""
