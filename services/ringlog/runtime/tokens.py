"""Who may read what a server of ours shows: those who bring one of its tokens, as ``Authorization: Bearer …`` says it
(RFC 6750).

Without a token there is an answer at ``/health`` only, which says no more than that the process is there and whether it
is ready: what looks after processes need not know a secret.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Sequence
from typing import Final

CHALLENGE: Final = "Bearer"
NO_TOKEN: Final = json.dumps({"detail": "show a token of this server: Authorization: Bearer …"}).encode()


def is_admitted(authorizations: Sequence[str], tokens: Sequence[str]) -> bool:
    """True if a request with these ``Authorization`` headers shows one of ``tokens``, or if there are none.

    How long it takes tells nothing of a token but its length.
    """
    if not tokens:
        return True
    scheme, _, said = (authorizations[0] if len(authorizations) == 1 else "").partition(" ")
    shown = said.strip().encode("utf-8", "surrogateescape")
    equal = [hmac.compare_digest(shown, token.encode()) for token in tokens]
    return scheme.lower() == "bearer" and any(equal)
