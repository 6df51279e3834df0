"""Avro: schemas, codecs, and the mapping of dataclasses."""
