"""Runs an engine of the NCCL probe in this process: an order in, its protocol lines out."""

import contextlib
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from unittest import mock

from nodegauge_contract import Cell
from nodegauge_probes.nccl.protocol import FD_VARIABLE, Line, Order, decode_line, encode_order

Outcome = tuple[int, list[Line], str]
LIBRARIES = ("nccl", "cuda")


def run(
    main: Callable[[Sequence[str], Mapping[str, str]], int],
    order: Order | str,
    environment: Mapping[str, str],
    *,
    libraries: Path | None = None,
) -> Outcome:
    reading, writing = os.pipe()
    text = order if isinstance(order, str) else encode_order(order)
    environment = {**environment, FD_VARIABLE: str(writing)}
    output = io.StringIO()
    forget_libraries()
    try:
        with (
            mock.patch.dict(os.environ, environment, clear=True),
            mock.patch.object(sys, "path", [*([str(libraries)] if libraries else []), *sys.path]),
            contextlib.redirect_stderr(output),
        ):
            code = main(["--order", text], environment)
    finally:
        os.close(writing)
        forget_libraries()
    with os.fdopen(reading, "rb") as pipe:
        return code, [decode_line(line) for line in pipe], output.getvalue()


def forget_libraries() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in LIBRARIES]:
        del sys.modules[name]


def cells(lines: list[Line]) -> list[Cell]:
    return [line.cell for line in lines if line.cell is not None]
