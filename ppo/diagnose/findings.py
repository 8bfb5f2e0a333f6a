"""What an audit found: facts, faults and notes."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    Attributes:
        kind: a fault is something that training would get wrong; a note is something to know.
        subject: what it is about, in a word or two.
        seen: what was seen.
        harm: what that would do in training.
        advice: what to do.
    """

    kind: Literal["fault", "note"]
    subject: str
    seen: str
    harm: str
    advice: str


def fault(subject: str, seen: str, harm: str, advice: str) -> Finding:
    """Something that training would get wrong."""
    return Finding("fault", subject, seen, harm, advice)


def note(subject: str, seen: str, harm: str, advice: str) -> Finding:
    """Something to know."""
    return Finding("note", subject, seen, harm, advice)


@dataclass(frozen=True)
class Audit:
    """Everything that is said of an environment.

    Attributes:
        env_id: which.
        facts: name to value, as it is printed.
        findings: faults and notes, in the order in which they were looked for.
    """

    env_id: str
    facts: dict[str, str | float | int | None]
    findings: list[Finding]

    @property
    def faults(self) -> list[Finding]:
        """What training would get wrong."""
        return [finding for finding in self.findings if finding.kind == "fault"]

    @property
    def notes(self) -> list[Finding]:
        """What there is to know."""
        return [finding for finding in self.findings if finding.kind == "note"]
