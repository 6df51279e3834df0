"""Shared parts of the subcommands: connection, options, output."""
