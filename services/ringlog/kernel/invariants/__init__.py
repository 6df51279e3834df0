"""What holds in every state, as code: each invariant with a name, the sentence that it promises, and a check."""
