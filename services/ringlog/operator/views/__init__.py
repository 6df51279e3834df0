"""Parts of the state as JSON and text, with the conditions that operations and tablets wait for."""
