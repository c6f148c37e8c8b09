"""The page as one file: style, scripts and data inside of it, and a policy that forbids all else.

Foreign text reaches the page as JSON alone, and the scripts set it as text.  The Content-Security-Policy
names each script and style by its hash, so that a browser runs nothing that a report could smuggle in, and
asks no network.
"""

from __future__ import annotations

import base64
import hashlib
from html import escape
from importlib.resources import files

import msgspec

from nodegauge_cli.page.model import FleetData

STYLES = ("uplot.css", "page.css")
SCRIPTS = ("uplot.js", "dom.js", "charts.js", "node.js", "fleet.js")
"""In the order in which they run; they share one scope.  uPlot: ADR 0054."""
LICENCE = "uplot-LICENSE.txt"


def page(data: FleetData) -> str:
    """The HTML."""
    styles = [_asset(name) for name in STYLES]
    scripts = [_asset(name) for name in SCRIPTS]
    policy = "; ".join(
        (
            "default-src 'none'",
            f"style-src {' '.join(map(_hash, styles))}",
            f"script-src {' '.join(map(_hash, scripts))}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    values = {
        "POLICY": escape(policy),
        "TITLE": escape(data.title),
        "LICENCE": _asset(LICENCE).replace("--", "- -"),
        "STYLES": "\n".join(f"<style>{style}</style>" for style in styles),
        "DATA": embedded(data),
        "SCRIPTS": "\n".join(f"<script>{script}</script>" for script in scripts),
    }
    before, *rest = _asset("page.html").split("@")
    pieces = [before]
    for name, text in zip(rest[::2], rest[1::2], strict=True):
        pieces += [values[name], text]
    return "".join(pieces)


def embedded(data: FleetData) -> str:
    """JSON that cannot end its script element, nor begin a comment in it."""
    return msgspec.json.encode(data).decode().replace("<", "\\u003c")


def _asset(name: str) -> str:
    return files("nodegauge_cli.page").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
