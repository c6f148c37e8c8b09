"""The page as one file: style, scripts and data inside of it, and a policy that forbids all else.

Foreign text reaches the page as JSON alone, and the scripts set it as text.  The Content-Security-Policy
names each script and style by its hash, so that a browser runs nothing that a report could smuggle in, and
asks no network.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from html import escape
from importlib.resources import files

import msgspec

from nodegauge_cli.page.model import FleetData

STYLES = ("uplot.css", "page.css")
SCRIPTS = ("uplot.js", "dom.js", "charts.js", "node.js", "fleet.js")
"""In the order in which they run; they share one scope.  uPlot: ADR 0054."""
SHARED = "\x01"
"""Begins a reference to the table of shared values."""
WORTH_SHARING = 24
"""Bytes of JSON; a reference has up to 13.  Chosen by this project."""
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
    shown = msgspec.to_builtins(data)
    shared = Shared(shown["nodes"])
    shown["nodes"] = shared.compact(shown["nodes"])
    shown["shared"] = shared.table
    return msgspec.json.encode(shown).decode().replace("<", "\\u003c")


class Shared:
    """The values that stand more than once in `value`, each once in `table`: nodes of a fleet are alike.  A
    reference to one is a text of `SHARED` and its number; each refers only to those before it."""

    def __init__(self, value: object) -> None:
        self.table: list[object] = []
        self._numbers: dict[bytes, int] = {}
        self._seen: set[bytes] = set()
        self._repeated: set[bytes] = set()
        self._look(value)

    def _look(self, value: object) -> None:
        for part in _parts(value):
            text = msgspec.json.encode(part)
            if text in self._seen:
                self._repeated.add(text)
            elif len(text) >= WORTH_SHARING:
                self._seen.add(text)
                self._look(part)

    def compact(self, value: object) -> object:
        """The value with references in place of what is repeated."""
        if isinstance(value, dict):
            return {key: self._part(part) for key, part in value.items()}
        return [self._part(part) for part in value] if isinstance(value, list) else value

    def _part(self, part: object) -> object:
        text = msgspec.json.encode(part)
        looks_like_one = isinstance(part, str) and part.startswith(SHARED)
        if text not in self._repeated and not looks_like_one:
            return self.compact(part)
        if text not in self._numbers:
            kept = self.compact(part)
            self._numbers[text] = len(self.table)
            self.table.append(kept)
        return f"{SHARED}{self._numbers[text]}"


def _parts(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _asset(name: str) -> str:
    return files("nodegauge_cli.page").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
