"""Pages and packages that do not keep the rules of prose yet, and pages that others may link to before they exist.

An entry whose page is gone has no effect. Each set is empty when the documentation is complete.
"""

from __future__ import annotations

PENDING_PAGES: frozenset[str] = frozenset()
PENDING_PACKAGES = frozenset({"tests"})

PLANNED_PAGES: frozenset[str] = frozenset()
PLANNED_COMMANDS: tuple[list[str], ...] = ()
"""Commands that pages may show before the program has them."""
