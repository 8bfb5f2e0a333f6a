"""An audit as text for people and as a record for programs."""

import textwrap
from dataclasses import asdict
from typing import Any

from ppo.diagnose.findings import Audit, Finding

_WIDTH = 100


def describe_audit(audit: Audit) -> str:
    """Facts, then faults, then notes."""
    width = max(map(len, audit.facts))
    lines = [audit.env_id, ""]
    lines += [f"  {name:<{width}}  {_value(value)}" for name, value in audit.facts.items()]
    for title, findings in (("faults", audit.faults), ("notes", audit.notes)):
        lines += ["", f"{title}: {len(findings) or 'none'}"]
        for finding in findings:
            lines += _finding(finding)
    return "\n".join(lines)


def _value(value: str | float | int | None) -> str:
    if value is None:
        return "none"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _finding(finding: Finding) -> list[str]:
    parts = (
        (f"  {finding.subject}: ", finding.seen),
        ("    in training: ", finding.harm),
        ("    what to do: ", finding.advice),
    )
    return [
        line
        for start, text in parts
        for line in textwrap.wrap(text, _WIDTH, initial_indent=start, subsequent_indent=" " * 6)
    ]


def audit_record(audit: Audit) -> dict[str, Any]:
    """The whole audit as plain Python, for JSON."""
    return {
        "env_id": audit.env_id,
        "facts": audit.facts,
        "faults": [asdict(finding) for finding in audit.faults],
        "notes": [asdict(finding) for finding in audit.notes],
    }
