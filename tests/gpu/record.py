"""Write down what this machine's real driver and NCCL answer, as material for fixtures and profiles.

    python tests/gpu/record.py FOLDER

Writes what the probes print, what nvidia-smi says of the same moment, and NCCL's own log of one and of two
ranks on the first GPU, each in a file of its own; what fails is written down as such.  UUIDs and serial
numbers are replaced by made-up ones, the same in every file, before anything is written; the host's name
too.  Look through the files before you publish them.
"""

from __future__ import annotations

import argparse
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nodegauge_contract import Collective
from nodegauge_probes.nccl.protocol import CellOrder, Order, encode_line
from support.gpu_tools import TWO_RANKS, Child

SECONDS = 180
COMMANDS = {
    "nvidia-smi-qx.xml": ("nvidia-smi", "-q", "-x"),
    "nvidia-smi-topo-m.txt": ("nvidia-smi", "topo", "-m"),
    "nvidia-smi-topo-p2p-r.txt": ("nvidia-smi", "topo", "-p2p", "r"),
    "nvidia-smi-topo-p2p-n.txt": ("nvidia-smi", "topo", "-p2p", "n"),
    "nvidia-smi-nvlink-s.txt": ("nvidia-smi", "nvlink", "-s"),
    "probe-health.json": (sys.executable, "-m", "nodegauge_probes", "health"),
    "probe-pull.json": (sys.executable, "-m", "nodegauge_probes", "pull"),
    "probe-nccl.json": (sys.executable, "-m", "nodegauge_probes", "nccl"),
    "probe-load.json": (sys.executable, "-m", "nodegauge_probes", "load"),
}
CELLS = tuple(
    CellOrder(collective=name, bytes=size, check=True, max_ms=500)
    for name in Collective
    for size in (8, 65536, 1 << 26, 1 << 28)
)
UUID = re.compile(r"\b(?:GPU-)?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
SERIAL = re.compile(r'(<serial>|"serial":")(\d{6,})')


class Disguise:
    """The same made-up name for the same real one, in all files."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        """The text without what identifies this machine."""
        text = UUID.sub(lambda match: self._uuid(match[0]), text)
        text = SERIAL.sub(lambda match: match[1] + self._serial(match[2]), text)
        return re.sub(rf"\b{re.escape(socket.gethostname())}\b", "gpu-host", text)

    def _uuid(self, real: str) -> str:
        bare = real.removeprefix("GPU-")
        number = self._known.setdefault(bare, str(len(self._known)))
        made = f"00000000-0000-4000-8000-{int(number):012x}"
        return f"GPU-{made}" if real.startswith("GPU-") else made

    def _serial(self, real: str) -> str:
        return self._known.setdefault(real, str(1_000_000_000_000 + len(self._known)))


def ran(command: tuple[str, ...]) -> str:
    """What a command prints, and how it ended where that was not well."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"not recorded: {error}\n"
    ended = f"\nexit code {done.returncode}\n{done.stderr}" if done.returncode else ""
    return done.stdout + ended


def spoken(order: Order, extra: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What the engine says of an order, and NCCL's log of it."""
    with tempfile.TemporaryDirectory() as folder:
        child = Child(order, scratch=Path(folder), extra=extra)
        try:
            yield "speech.jsonl", b"".join(map(encode_line, child.lines())).decode()
        finally:
            child.close()
        yield "nccl.log", "".join(path.read_text(errors="replace") for path in Path(folder).glob("nccl.*"))


def first_gpu() -> str:
    """UUID of the first GPU."""
    listed = ran(("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"))
    return listed.split("\n", maxsplit=1)[0].strip()


def main() -> int:
    """0 when everything was tried."""
    parser = argparse.ArgumentParser(description="Record what a real driver and NCCL answer.")
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    disguise = Disguise()
    for name, command in COMMANDS.items():
        (folder / name).write_text(disguise(ran(command)), encoding="utf-8")
        print(f"{folder / name}")
    if shutil.which("nvidia-smi") is None:
        return 0
    gpu = first_gpu()
    for ranks, extra in ((1, {}), (2, TWO_RANKS)):
        order = Order(arm="default", uuids=(gpu,) * ranks, cells=CELLS, pairs_bytes=(ranks - 1) << 26)
        for name, text in spoken(order, extra):
            path = folder / f"{ranks}-rank-{name}"
            path.write_text(disguise(text), encoding="utf-8")
            print(f"{path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
