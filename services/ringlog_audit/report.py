"""The findings of the audit, one line each."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class AuditCheck:
    """One statement about the topics, its number of failures, and up to ten examples that contradict it."""

    name: str
    statement: str
    failures: int = 0
    examples: list[str] = field(default_factory=list)

    def fail(self, example: str) -> None:
        """Count a failure."""
        self.failures += 1
        if len(self.examples) < 10:
            self.examples.append(example)

    @property
    def ok(self) -> bool:
        """Return True while no failure is counted."""
        return self.failures == 0


@dataclass(slots=True)
class AuditReport:
    """All checks, and the counts behind them."""

    counts: dict[str, int] = field(default_factory=dict)
    checks: list[AuditCheck] = field(default_factory=list)
    generations: list[dict[str, int]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Return True if every check passes."""
        return all(check.ok for check in self.checks)

    def as_json(self) -> dict[str, object]:
        """Return the report for ``--json``."""
        return {
            "ok": self.ok,
            "counts": self.counts,
            "generations": self.generations,
            "checks": [
                {"name": c.name, "ok": c.ok, "statement": c.statement, "failures": c.failures, "examples": c.examples}
                for c in self.checks
            ],
        }
