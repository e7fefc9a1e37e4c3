"""Readers of other programs' run logs, one file per format."""

from steersman.controller import plugins

KIND = "controller.importers"
"""Of these parts, in `controller/plugins.py`."""


def formats() -> list[str]:
    """The names of all formats, as a person writes them: prime-rl, not prime_rl."""
    return [name.replace("_", "-") for name in plugins.names(KIND)]


def part(format: str) -> str:
    """The part that reads a format: prime_rl for prime-rl."""
    return format.replace("-", "_")
