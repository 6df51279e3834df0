"""Parts of the state as JSON and text, with what they wait for."""
