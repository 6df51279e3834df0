"""The lakehouse sink: the CDC log of each table as a Delta table, and the description of its generations beside them.

``heads`` reads what identifies a row out of its bytes, ``columns`` says what a row is in a table of the lake,
``delta`` is all that is asked of Delta, ``descriptions`` keeps the tables of generations and streams, ``sink`` puts it
together for the job.
"""
