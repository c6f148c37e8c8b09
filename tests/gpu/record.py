"""Write down what this machine's real driver and NCCL answer, as material for fixtures and profiles.

`python tests/gpu/record.py FOLDER` writes one file a command, also where it failed.  UUIDs, serial numbers
and the host's name are made up, the same in all files.  Look through the files before you publish them.
"""

import re
import socket
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nodegauge_probes.nccl.protocol import Order, encode_line
from support.gpu_tools import CELLS, TWO_RANKS, Child

SMI = ("-q -x", "topo -m", "topo -p2p r", "topo -p2p n", "nvlink -s")
REAL = re.compile(r'(?:[0-9a-f]+-){4}[0-9a-f]{12}|(?<=<serial>)\d{6,}|(?<="serial":")\d{6,}')
SHAPES = ("1{:012}", "00000000-0000-4000-8000-{:012}")
MADE_UP: dict[str, str] = {}


def write(folder: Path, name: str, text: str) -> None:
    text = REAL.sub(lambda it: MADE_UP.setdefault(it[0], SHAPES["-" in it[0]].format(len(MADE_UP))), text)
    text = re.sub(rf"\b{re.escape(socket.gethostname())}\b", "gpu-host", text)
    (folder / re.sub(r"\W+", "-", name)).write_text(text, encoding="utf-8")


def ran(*command: str) -> str:
    """What a command prints, and how it ended where that was not well."""
    done = subprocess.run(["timeout", "180", *command], capture_output=True, text=True, check=False)
    return done.stdout + (f"\nexit code {done.returncode}\n{done.stderr}" if done.returncode else "")


def spoken(gpu: str, ranks: int) -> str:
    """What the engine says with so many ranks on this GPU, and NCCL's log of it."""
    order = Order(arm="default", uuids=(gpu,) * ranks, cells=CELLS, pairs_bytes=(ranks - 1) << 26)
    extra = TWO_RANKS if ranks > 1 else {}
    with tempfile.TemporaryDirectory() as at, closing(Child(order, scratch=Path(at), extra=extra)) as child:
        lines = b"".join(map(encode_line, child.lines())).decode()
        return lines + "".join(path.read_text(errors="replace") for path in Path(at).glob("nccl.*"))


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for options in SMI:
        write(folder, f"nvidia-smi {options}", ran("nvidia-smi", *options.split()))
    for kind in ("health", "pull", "nccl", "load"):
        write(folder, f"probe {kind}", ran(sys.executable, "-m", "nodegauge_probes", kind))
    gpu = ran("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader").split("\n")[0]
    for ranks in (1, 2):
        write(folder, f"nccl {ranks}", spoken(gpu, ranks))
