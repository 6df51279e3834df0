"""The invariants of every state, as code: each has a name, the sentence that it promises, and a check."""
