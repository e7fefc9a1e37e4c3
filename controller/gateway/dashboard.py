"""The dashboard's page: put together from its three parts, once, with the policy that guards it.

The policy lets the browser run exactly this script and this style sheet and speak to nobody but the
gateway, so that a prompt's name that looks like a script stays a name.
"""

from base64 import b64encode
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files

STYLE, SCRIPT = "/* STYLE */", "/* SCRIPT */"
"""Where the parts go in the document."""


@dataclass(frozen=True)
class Page:
    """What a browser gets."""

    html: bytes
    policy: str
    """Value of the header `Content-Security-Policy`."""


def load_page() -> Page:
    """The page as it is shipped."""
    folder = files("steersman.controller.gateway") / "static"
    document, style, script = (
        (folder / f"dashboard.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js")
    )
    html = document.replace(STYLE, style).replace(SCRIPT, script)
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(script)}",
            f"style-src {_hash(style)}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )
    return Page(html.encode(), policy)


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
