"""The processes of a simulated cluster: production decisions, performed on the simulated world."""
