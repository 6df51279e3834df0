"""A checked read and write load on a live cluster (``ringlog load``)."""
