"""What operators mean and want to know, for all that asks in their name: the command line, a node, a service.

- ``intents``: a wish to a command, with names resolved and every choice (tokens, ids, seeds) made. ``author_json`` and
  ``shapes`` read it from JSON, ``replication`` from what people type; ``tokens`` chooses where a node stands.
- ``answers``: what became of a wish; ``requests``: the same of a read or write.
- ``views``: parts of the state as JSON; ``waiting``: what an operation waits for, and the ways out; ``words``,
  ``shown``: the same for people.
- ``rehearsal``: a plan, tried offline; ``log_lines``: the log, entry by entry; ``scripts``: questions of a line.
- ``clocks``, ``fencing``: what a wrong clock left in the log, and a writer that is to write no more.

Nothing here prints, ends a process or knows an option. What is refused is a value, or an exception with a stable
``code``.
"""
