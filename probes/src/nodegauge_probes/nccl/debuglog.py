"""The files into which NCCL writes its debug output, of one arm, up to a limit."""

from __future__ import annotations

from pathlib import Path

from nodegauge_contract.nccl_tests.choices import Choices

MAX_BYTES = 64 << 20
"""Of one arm's logs: NCCL writes a line per call, and small messages need many calls."""


def read(folder: Path) -> Choices:
    """The choices in the logs in `folder`, as far as they can be read."""
    choices, left = Choices(), MAX_BYTES
    try:
        files = sorted(folder.glob("nccl.*.log"))
    except OSError:
        return choices
    for file in files:
        try:
            with file.open("rb") as log:
                while left > 0 and (line := log.readline(4096)):
                    left -= len(line)
                    choices.feed(line.decode("utf-8", "replace"))
        except OSError:
            continue
    return choices
