"""The start, the steps and the cancel of operations and tablet transitions."""
