"""The Spark pipeline of Ringlog: mutations in, CDC rows keyed by stream id out."""
