"""Writes a certificate's fingerprint into an inventory's entry, and leaves all else of the file as it is.

Comments, order, quotes and line ends stay: one line or member is added to the text, and the result must read
as the entry with the pin.  A file changes as a whole or not at all.  A pin that is there is never replaced.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from nodegauge_bmc.inventory import WrongEntry

MODE = 0o600
"""Of a file that did not exist: it is among files with passwords."""
_EMPTY = re.compile(r"""(["']?fingerprint["']?\s*:)[ \t]*(?:""|''|null|~)?(?=[ \t]*(?:[,}#\r\n]|$))""")
_FIRST = re.compile(r"^(?!\s*(?:#|%|---|$))([ \t]*)(?=\S)", re.MULTILINE)


def pin(path: Path, fingerprint: str) -> None:
    """Write the pin into the file, or a new one.  Raises `WrongEntry` or `OSError`; then nothing changed."""
    path = path.resolve()  # a link stays one
    exists = path.exists()
    try:
        text = path.read_bytes().decode() if exists else ""
        changed = pinned(text, fingerprint).encode()
    except (ValueError, yaml.YAMLError):
        raise WrongEntry(f"{path.name}: fingerprint: the file changed and is no YAML now; mend it") from None
    except WrongEntry as error:
        raise WrongEntry(f"{path.name}: {error}") from None
    partial = path.with_name(f".{path.name}.new")  # the inventory skips names that begin with a dot
    partial.unlink(missing_ok=True)
    try:
        opened = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
        with os.fdopen(opened, "wb") as file:
            file.write(changed)
            file.flush()
            os.fsync(file.fileno())
        if exists:
            partial.chmod(path.stat().st_mode & 0o777)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def pinned(text: str, fingerprint: str) -> str:
    """The entry's text with the pin.  Raises `WrongEntry` if it has another, or cannot take a line."""
    before = yaml.safe_load(text) or {}
    if not isinstance(before, dict) or before.get("fingerprint"):
        raise WrongEntry("fingerprint: there is one already; take it out first")
    wanted = before | {"fingerprint": fingerprint}
    for changed in _tries(text, before, fingerprint):
        if _read(changed) == wanted:
            return changed
    raise WrongEntry(f'fingerprint: the file takes no line more; write fingerprint: "{fingerprint}" yourself')


def _tries(text: str, before: dict[str, Any], fingerprint: str) -> Iterator[str]:
    """Texts that may be the entry with the pin."""
    if "fingerprint" in before:
        yield _EMPTY.sub(rf'\g<1> "{fingerprint}"', text, count=1)
        return
    end = "\r\n" if "\r\n" in text else "\n"
    head = text.rstrip().removesuffix("}").rstrip()
    comma = "" if head.endswith(("{", ",")) else ","
    yield f'{head}{comma} "fingerprint": "{fingerprint}"{text[len(head) :]}'
    first = _FIRST.search(text)
    indent = first[1] if first else ""
    line = f'{indent}fingerprint: "{fingerprint}"{end}'
    yield text + ("" if text.endswith("\n") or not text else end) + line
    if first:
        yield text[: first.start()] + line + text[first.start() :]


def _read(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return None
