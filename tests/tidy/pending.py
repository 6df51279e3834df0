"""Pages and packages that do not keep the rules of prose yet, and pages that others may link to before they exist.

An entry whose page is gone has no effect. Each set is empty when the documentation is complete.
"""

from __future__ import annotations

PENDING_PAGES = frozenset({"docs/reference/codes.md", "docs/reference/metrics.md"})
PENDING_PACKAGES = frozenset({"tests"})

PLANNED_PAGES: frozenset[str] = frozenset()
PLANNED_COMMANDS = (["cluster", "create"],)
"""Commands that pages may show before the program has them."""
