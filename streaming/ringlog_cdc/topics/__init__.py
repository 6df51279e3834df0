"""Topics as Spark frames: sources, sinks, retention."""
