"""Pages and packages that do not keep the rules of prose yet, and pages that others may link to before they exist.

An entry whose page is gone has no effect. Each set is empty when the documentation is complete.
"""

from __future__ import annotations

GUIDE = (
    "balancing consistency consumers data-engineers developers generations operators range-movements registers "
    "several-machines spark test-your-integration write-your-own-reader zones"
)
PENDING_PAGES = frozenset(
    {
        "README.md", "CHANGELOG.md", "compose/README.md", "docs/glossary.md", "docs/reference/codes.md",
        "docs/reference/metrics.md", "docs/reference/settings.md", "docs/reference/mutants.md",
        *(f"docs/guide/{name}.md" for name in GUIDE.split()),
    }
)  # fmt: skip
PENDING_PACKAGES = frozenset({"bench", "tests"})

TREE = {
    "": "README quick-start demo install compare limits glossary",
    "concepts/": "README log-and-epochs operations tablets zones cdc-generations consistency",
    "operate/": "README add-a-node replace-a-node remove-a-node schema tablets zones backup-and-recovery upgrade "
    "monitoring troubleshooting settings security uninstall operations cdc-writers rehearse",
    "deploy/": "README brokers tls systemd sizing redis permissions",
    "build/": "README python-client own-node rows-and-registers change-topics cdc-topic spark debezium lake "
    "other-languages testing mutations cdc-protocol cdc-job spark-reader",
    "internals/": "generations",
}
PLANNED_PAGES = frozenset(f"docs/{folder}{name}.md" for folder, names in TREE.items() for name in names.split())
PLANNED_COMMANDS = (["cluster", "create"],)
"""Commands that pages may show before the program has them."""
