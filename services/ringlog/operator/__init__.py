"""Library of operator actions for the command line, nodes and services.

- ``intents``: an operator's intent as a command. Names are resolved; tokens, ids and seeds are chosen.
- ``answers``: submits a command and describes its outcome.
- ``views``: parts of the state as JSON and as text, with the conditions that operations wait for.
- ``history``: past states and the log, entry by entry.
- ``rehearsal``: plans that run offline.
- ``ddl``: the schema as CQL.
- ``balancing``: the balancer's plan and the nodes' reports, read from the topics.
- ``certificates``, ``fencing``: certificates and keys for trials, and fencing of CDC writers.

No module here prints, exits the process or parses options. A refusal is a value, or an exception with a stable
``code``.
"""
