"""Commands on keyspaces, tables, types, functions and views."""
