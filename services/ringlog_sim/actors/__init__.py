"""The processes of a simulated cluster. They run production decisions in the simulated world."""
