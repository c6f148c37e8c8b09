"""An engine of the benchmark as the probe starts it: a program, an order, and what it says on its pipe."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

from nodegauge_contract import Cell
from nodegauge_probes.nccl.protocol import FD_VARIABLE, Line, Order, decode_line, encode_order

Said = tuple[int, list[Line], str]
"""The child's exit code, all it said, and what it and its programs printed."""


def run(module: str, order: Order | str, environment: Mapping[str, str]) -> Said:
    """The engine until its end, with nothing in its environment but this and its pipe."""
    reading, writing = os.pipe()
    text = order if isinstance(order, str) else encode_order(order)
    child = subprocess.Popen(
        [sys.executable, "-m", f"nodegauge_probes.nccl.{module}", "--order", text],
        env={**environment, FD_VARIABLE: str(writing)},
        pass_fds=(writing,),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    os.close(writing)
    with os.fdopen(reading, "rb") as speech, child:
        lines = [decode_line(line) for line in speech]
        assert child.stdout is not None
        printed = child.stdout.read().decode()
    return child.returncode, lines, printed


def cells(lines: list[Line]) -> list[Cell]:
    """What was measured."""
    return [line.cell for line in lines if line.cell is not None]
