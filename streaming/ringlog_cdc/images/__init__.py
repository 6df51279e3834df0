"""Preimages and postimages: the state of rows beside the job, and the rows of the log that are made of it."""
