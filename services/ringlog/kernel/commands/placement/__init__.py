"""Commands on tablets and zones."""
