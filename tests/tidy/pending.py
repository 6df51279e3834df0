"""Pages and packages that do not keep the rules of prose yet, and pages that others may link to before they exist.

An entry whose page is gone has no effect. Each set is empty when the documentation is complete.
"""

from __future__ import annotations

PENDING_PAGES = frozenset(
    {"docs/guide/balancing.md", "docs/guide/zones.md", "docs/reference/codes.md", "docs/reference/metrics.md"}
)
PENDING_PACKAGES = frozenset({"tests"})

TREE = {
    "": "quick-start",
    "operate/": "README add-a-node replace-a-node remove-a-node schema tablets zones",
}
PLANNED_PAGES = frozenset(f"docs/{folder}{name}.md" for folder, names in TREE.items() for name in names.split())
PLANNED_COMMANDS = (["cluster", "create"],)
"""Commands that pages may show before the program has them."""
