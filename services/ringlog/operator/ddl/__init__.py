"""The schema in CQL: read (``reading``) and written (``writing``)."""
