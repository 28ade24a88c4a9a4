"""What the company's payloads look like."""

from typing import Any

MONEY = {"type": "integer", "minimum": 1, "maximum": 10_000_000}  # cents
TEXT = {"type": "string", "minLength": 1, "maxLength": 200}
# How long a step of the work takes, in milliseconds: the producer decides.
PACE = {"type": "integer", "minimum": 0, "maximum": 60_000}


def schema(**properties: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Version 1 of a payload: these members and nothing else."""
    members = {"version": {"const": 1}, "pace": PACE, **properties}
    return {1: {"type": "object", "properties": members, "required": list(members), "additionalProperties": False}}
