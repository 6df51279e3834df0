"""What the sub-commands share: connection, options, output."""
