"""The file in which `nodegauge node` keeps what its next run needs: what a NodeReport keeps of each probe."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from nodegauge_cli.inputs import BadInput
from nodegauge_cli.judging import Kept

SCHEMA: Literal["nodegauge.dev/node-history/1"] = "nodegauge.dev/node-history/1"


class File(Struct, frozen=True, kw_only=True):
    """The whole file."""

    schema: Literal["nodegauge.dev/node-history/1"]
    kept: Kept


def read(path: Path | None) -> Kept:
    """What earlier runs have kept; nothing without a file, or in an empty one.

    Raises `BadInput` for a file of another kind, which must not be overwritten.
    """
    try:
        data = path.read_bytes() if path is not None else b""
    except FileNotFoundError:
        return Kept()
    except OSError as error:
        raise BadInput(f"{path}: the history cannot be read: {error.strerror}") from None
    try:
        return msgspec.json.decode(data, type=File).kept if data.strip() else Kept()
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise BadInput(
            f"{path}: not a history of `nodegauge node`, which would overwrite it. Name another file, or "
            "remove this one"
        ) from None


def text(kept: Kept) -> str:
    """What `read` reads."""
    return msgspec.json.encode(File(schema=SCHEMA, kept=kept)).decode() + "\n"
