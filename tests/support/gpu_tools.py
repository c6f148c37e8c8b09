"""Run the probes' own programs on a machine with a GPU: for tests/gpu."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pynvml

from nodegauge_contract import ArmName, Result, decode
from nodegauge_contract.nccl import GRADED
from nodegauge_probes.nccl.plan import child_environment
from nodegauge_probes.nccl.protocol import CellOrder, Line, Order, decode_line, encode_order
from testbed.wait import wait_for

TWO_RANKS = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "8"}
"""Two ranks on one GPU (since NCCL 2.30, experimental): each takes channels of its own, and without the
second variable they may wait for each other for ever."""
SIZES = (8, 1 << 16, 1 << 26)
CELLS = tuple(CellOrder(collective=c, bytes=n, check=True, max_ms=300) for c in GRADED for n in SIZES)


def probe(*arguments: str, seconds: float = 120) -> Result:
    command = [sys.executable, "-m", "nodegauge_probes", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stderr
    return decode(done.stdout)


def wait_until_free(*uuids: str) -> None:
    handles = [pynvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids]
    running = pynvml.nvmlDeviceGetComputeRunningProcesses
    wait_for(lambda: not any(map(running, handles)), what="free GPUs", seconds=10)


class Child:
    def __init__(self, order: Order, *, scratch: Path, extra: Mapping[str, str] | None = None) -> None:
        reading, writing = os.pipe()
        own = child_environment(
            os.environ,
            arm=ArmName.DEFAULT,
            uuids=list(dict.fromkeys(order.uuids)),
            policy=extra or {},
            scratch=scratch,
        )
        own |= {"PYTHONPATH": os.pathsep.join(sys.path), "NODEGAUGE_PROTOCOL_FD": str(writing)}
        command = [sys.executable, "-m", "nodegauge_probes.nccl.engine_nccl4py"]
        self.process = subprocess.Popen(
            [*command, "--order", encode_order(order)], env=own, pass_fds=(writing,), start_new_session=True
        )
        os.close(writing)
        self._speech = os.fdopen(reading, "rb")

    def line(self) -> Line | None:
        data = self._speech.readline()
        return decode_line(data) if data else None

    def lines(self) -> list[Line]:
        return list(iter(self.line, None))

    def close(self) -> int:
        self.process.kill()
        self._speech.close()
        return self.process.wait()
