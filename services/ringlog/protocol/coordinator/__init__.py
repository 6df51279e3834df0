"""The coordinator: reads acknowledgements, and proposes the next steps of operations, tablets and CDC generations."""
