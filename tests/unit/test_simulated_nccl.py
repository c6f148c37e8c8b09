"""The simulated NCCL by itself: it takes from its environment what NCCL takes from there, no more."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nodegauge_probes.nccl.protocol import FD_VARIABLE, CellOrder, Line, Order, decode_line, encode_order
from testbed import simulated_nccl
from testbed.simulated_nccl.machine import MACHINE_VARIABLE, Gpu, Machine, Way, encode

FOLDER = Path(simulated_nccl.__file__).parent
PROBES = Path(__file__).resolve().parents[2] / "probes/src"
GIB = 1 << 30
PAIR = Machine(
    name="pair",
    seed="seed",
    nccl="2.32.3",
    cuda="12.9",
    gpus=(
        Gpu(uuid="GPU-a", pairs=(-1, 40)),
        Gpu(uuid="GPU-b", pairs=(40, -1)),
    ),
    ways={
        "nvls": Way(transport="P2P/direct pointer", latency_us=20, busbw={"all_reduce": {2: 80}}),
        "p2p": Way(
            transport="P2P/direct pointer",
            latency_us=12,
            busbw={"all_reduce": {2: 40}, "all_gather": {2: 40}},
        ),
        "host": Way(
            transport="SHM/direct/direct",
            latency_us=20,
            busbw={"all_reduce": {2: 4}, "all_gather": {2: 4}},
        ),
    },
    nvls_from=2,
)


def speak(
    folder: Path,
    *cells: CellOrder,
    machine: Machine = PAIR,
    environment: Mapping[str, str] | None = None,
    launcher: Path = FOLDER / "nccl",
    **order: Any,
) -> list[Line]:
    (folder / "machine.json").write_bytes(encode(machine))
    asked = Order(**{"arm": "whatever", "uuids": ("GPU-a", "GPU-b"), "cells": cells} | order)
    done = subprocess.run(
        [str(launcher), "--order", encode_order(asked)],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(PROBES),
            "NODEGAUGE_SIMULATED_NCCL_PYTHON": sys.executable,
            FD_VARIABLE: "1",
            MACHINE_VARIABLE: str(folder / "machine.json"),
            **({"LD_LIBRARY_PATH": os.environ["LD_LIBRARY_PATH"]} if "LD_LIBRARY_PATH" in os.environ else {}),
            **(environment or {}),
        },
        capture_output=True,
        check=False,
    )
    lines = [decode_line(line) for line in done.stdout.splitlines()]
    assert done.returncode == (0 if lines[-1].done else 1), done.stderr.decode()
    return lines


def one_gib(lines: list[Line]) -> float:
    """busbw of the only cell, all_reduce over two ranks: its factor is 1."""
    [us] = [line.cell.us for line in lines if line.cell is not None]
    assert isinstance(us, (int, float))
    return GIB / us / 1000


@pytest.mark.parametrize(
    ("environment", "gbps", "transport"),
    [
        ({}, 80, "P2P/direct pointer"),
        ({"NCCL_NVLS_ENABLE": "0"}, 40, "P2P/direct pointer"),
        ({"NCCL_ALGO": "Ring"}, 40, "P2P/direct pointer"),
        ({"NCCL_P2P_DISABLE": "1", "NCCL_NVLS_ENABLE": "0"}, 4, "SHM/direct/direct"),
        ({"NCCL_P2P_DISABLE": "1"}, 80, "SHM/direct/direct"),
    ],
)
def test_the_environment_makes_the_arm_and_not_the_order(
    tmp_path: Path, environment: dict[str, str], gbps: float, transport: str
) -> None:
    """P2P off alone leaves NVLS on, as NCCL does; the log names the way that the numbers are of."""
    debug = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(tmp_path / "nccl.%h.%p.log")}
    lines = speak(
        tmp_path, CellOrder(collective="all_reduce", bytes=GIB), environment={**environment, **debug}
    )
    assert one_gib(lines) == pytest.approx(gbps, rel=0.02)
    [log] = tmp_path.glob("nccl.*.log")
    assert f"0[0] -> 1[1] via {transport}\n" in log.read_text()
