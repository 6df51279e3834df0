"""Commands on the cluster as a whole."""
