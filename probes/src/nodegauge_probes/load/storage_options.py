"""Options of the load probe that concern storage: which folder, how much, how long, and whether to write."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

SIZE_GIB, SECONDS = 4, 5


class Options(Struct, frozen=True, kw_only=True):
    """What to read."""

    folder: Path
    """The folder with the file, as this process sees it."""
    path: str
    """The same as the node calls it."""
    size: int
    """Bytes of the file, a multiple of 1 MiB."""
    seconds: float
    """How long to read."""
    write: bool
    """Whether the probe may make the file."""


def add_to(parser: ArgumentParser) -> None:
    """Declare the options."""
    group = parser.add_argument_group("load: storage")
    group.add_argument("--nvme", metavar="FOLDER", help="also read a file in this folder; default none")
    group.add_argument("--nvme-path", metavar="PATH", help="how the node calls the folder, default FOLDER")
    group.add_argument(
        "--nvme-gib", metavar="GIB", default=f"{SIZE_GIB}", help=f"size of the file, default {SIZE_GIB}"
    )
    group.add_argument(
        "--nvme-seconds", metavar="SECONDS", default=f"{SECONDS}", help=f"of reading, default {SECONDS}"
    )
    group.add_argument("--nvme-write", action="store_true", help="make the file if it is missing")


def options_of(namespace: Namespace, *, number: Callable[..., float], bad: list[str]) -> Options | None:
    """The options, None if nothing is to be read; `number` parses one, and adds to `bad` what is wrong."""
    if not namespace.nvme:
        return None
    folder, path = Path(namespace.nvme), namespace.nvme_path or namespace.nvme
    if not folder.is_absolute():
        bad.append(f"--nvme: {namespace.nvme!r} is not an absolute path")
    if len(path) > 256:
        bad.append("--nvme-path: longer than 256 characters; shorten it")
    return Options(
        folder=folder,
        path=path,
        size=round(number(namespace.nvme_gib, "--nvme-gib", bad, low=1 / 64, high=64) * 1024) * 2**20,
        seconds=number(namespace.nvme_seconds, "--nvme-seconds", bad, low=0.1, high=30),
        write=namespace.nvme_write,
    )
