"""The console: an HTTP API and web pages that show a cluster and change it.

``table`` declares each view once. Its JSON is ``/v1/NAME`` and ``/NAME.json``, its page is ``/NAME``.

Invariants: a view is a pure function of a ``ViewInput``: a state, the reports of nodes and agents, and the parameters.
All text is escaped. The pages work while the broker is away, and show the age of the state.

Source: decision 202.
"""
