"""The lakehouse sink: the CDC log of each table as a Delta table, and tables that describe its generations.

``heads`` parses the identity of rows from their bytes. ``columns`` defines a table's columns in the lake. ``delta``
wraps Delta's operations. ``descriptions`` maintains the tables of generations and streams. ``sink`` combines them for
the job.
"""
