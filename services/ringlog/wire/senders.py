"""The sender of an entry: the principal, the machine and the program that it uses, and the person that it acts for.

``submitter``, a text of requests and entries, names all of them::

    alice host=ws7 client=ringlog/0.1.0 on_behalf=Bob Smith

The name comes first and contains no blank in a cluster with principals. The other parts are claims of that sender:
empty ones are absent, and ``on_behalf`` is the last, so it may contain blanks. The MAC of a request covers the text.
The validator replaces the name with that of the verified principal, and bounds the parts.

Invariants: ``parsed_sender(str(sender))`` has the same parts. A text without these parts is a name. A bounded text is
printable and has at most ``SENDER_BYTES_MAX`` bytes.

Source: decision 196.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from ringlog.kernel.values import Value, replace

NAME_BYTES_MAX, HOST_BYTES_MAX, CLIENT_BYTES_MAX, ON_BEHALF_BYTES_MAX = 200, 255, 100, 200
SENDER_BYTES_MAX: Final = NAME_BYTES_MAX + HOST_BYTES_MAX + CLIENT_BYTES_MAX + ON_BEHALF_BYTES_MAX + 30
_TEXT: Final = re.compile(r"(.*?)(?: host=([^ ]+))?(?: client=([^ ]+))?(?: on_behalf=(.+))?", re.DOTALL)


class EntrySender(Value):
    """A sender of requests. Empty parts are unknown."""

    name: str
    host: str = ""
    client: str = ""
    on_behalf: str = ""

    def __str__(self) -> str:
        """Return the text of a request or an entry."""
        parts = {"host": self.host, "client": self.client, "on_behalf": self.on_behalf}
        return " ".join([self.name, *(f"{name}={part}" for name, part in parts.items() if part)])


def parsed_sender(submitter: str) -> EntrySender:
    """Return the sender that a text names."""
    found = _TEXT.fullmatch(submitter)
    assert found is not None, "the first part matches any text"
    return EntrySender(*(part or "" for part in found.groups()))


def bounded(submitter: str, principal: str = "") -> str:
    """Return a printable text of bounded size. ``principal``: the verified name; empty: the name in the text."""
    return _bounded(submitter[:SENDER_BYTES_MAX], principal)  # cut before the cache: a client chose the text


@lru_cache(maxsize=1_024)
def _bounded(submitter: str, principal: str) -> str:
    found = parsed_sender(submitter)
    name = principal or _cut(found.name, NAME_BYTES_MAX)
    client, on_behalf = _cut(found.client, CLIENT_BYTES_MAX), _cut(found.on_behalf, ON_BEHALF_BYTES_MAX)
    return str(replace(found, name=name, host=_cut(found.host, HOST_BYTES_MAX), client=client, on_behalf=on_behalf))


def _cut(text: str, size: int) -> str:
    """Return the printable text, cut to ``size`` bytes."""
    shown = "".join(sign if sign.isprintable() else "?" for sign in text[:size])
    return shown.encode()[:size].decode(errors="ignore")
