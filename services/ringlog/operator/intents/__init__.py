"""Operators' intents as commands: names, tokens and JSON resolved on a state."""
