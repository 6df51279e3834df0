"""The schema as CQL: parse statements (``reading``) and describe a schema (``writing``)."""
