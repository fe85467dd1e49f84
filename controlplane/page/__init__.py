"""The live page: one file, `live.html`, which loads nothing from anywhere and follows the stream `/live`."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

from kvdaemon.http import Answer, Page

_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


def live_page() -> Page:
    """The page, read once. Its browser runs what is in it and nothing else, and asks nobody but this server."""
    text = (Path(__file__).parent / "live.html").read_text(encoding="utf-8")
    allowed = {kind: f"{kind}-src '{_digest(inline)}'" for kind, inline in _INLINE.findall(text)}
    policy = [
        "default-src 'none'",
        allowed["script"],
        allowed["style"],
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
    answer = Answer("text/html; charset=utf-8", text.encode(), fields={"Content-Security-Policy": "; ".join(policy)})
    return lambda: answer


def _digest(inline: str) -> str:
    """As a Content-Security-Policy names what may run (W3C CSP3)."""
    return f"sha256-{base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()}"
