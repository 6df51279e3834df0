"""The audit's findings, one line each."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class AuditCheck:
    """One statement about the topics, what was found, and up to ten examples of what contradicts it."""

    name: str
    statement: str
    failures: int = 0
    examples: list[str] = field(default_factory=list)

    def fail(self, example: str) -> None:
        """Count a contradiction."""
        self.failures += 1
        if len(self.examples) < 10:
            self.examples.append(example)

    @property
    def ok(self) -> bool:
        """True while nothing contradicts the statement."""
        return self.failures == 0


@dataclass(slots=True)
class AuditReport:
    """All checks with the counts they rest on."""

    counts: dict[str, int] = field(default_factory=dict)
    checks: list[AuditCheck] = field(default_factory=list)
    generations: list[dict[str, int]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if every check holds."""
        return all(check.ok for check in self.checks)

    def as_json(self) -> dict[str, object]:
        """For ``--json``."""
        return {
            "ok": self.ok,
            "counts": self.counts,
            "generations": self.generations,
            "checks": [
                {"name": c.name, "ok": c.ok, "statement": c.statement, "failures": c.failures, "examples": c.examples}
                for c in self.checks
            ],
        }
