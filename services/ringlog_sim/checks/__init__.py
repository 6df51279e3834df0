"""The invariants that must hold after every event and at the end of a run."""
