"""The machine that the simulated NCCL runs on, as a JSON file: what NCCL would find, and its trouble."""

from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

MACHINE_VARIABLE = "NODEGAUGE_SIMULATED_NCCL_MACHINE"
DEFAULT_FILE = Path(__file__).with_name("machine.json")
"""What an image brings: versions and no GPUs, which is all that a container without GPUs can tell."""
MIB = 1 << 20

Curve = tuple[tuple[int, float], ...]
"""(MiB, share of the value at 1 GiB), ascending."""


class MachineMissing(Exception):
    """There is no machine file, or nobody can read it; the message says which."""


class Way(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way in which NCCL joins ranks: busbw in GB/s (1e9) at 1 GiB by collective and number of ranks.
    `transport` as NCCL's log names it; `latency_us`: of the smallest call; `shape`: how the value depends on
    the size."""

    transport: str
    latency_us: float
    busbw: dict[str, dict[int, float]]
    shape: Curve = ((1, 1.0),)


class Gpu(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`pairs`: GB/s one way from it to every GPU, -1 to itself; `there`: CUDA can use it."""

    uuid: str
    pairs: tuple[float, ...]
    there: bool = True


class Trouble(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What goes wrong in the arms that `arm` names ("": all).  `percent` of the usual, `gpus` of whom."""

    kind: str
    arm: str = ""
    phase: str = ""
    seconds: float = 0.0
    percent: float = 100.0
    gpus: tuple[int, ...] = ()
    message: str = ""


class Machine(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`ways` by name: `nvls` (all_reduce alone, from `nvls_from` ranks on), `p2p`, and `host`, which every
    machine has.  Seconds are what NCCL would take; `pace` is the share of them that really pass."""

    name: str
    seed: str
    nccl: str
    cuda: str
    gpus: tuple[Gpu, ...]
    ways: dict[str, Way] = {}
    nvls_from: int = 0
    init_seconds: float = 2.5
    load_seconds: float = 0.3
    teardown_seconds: float = 0.5
    pace: float = 0.001
    troubles: tuple[Trouble, ...] = ()


def load(environment: Mapping[str, str]) -> Machine:
    named = environment.get(MACHINE_VARIABLE) or (DEFAULT_FILE if DEFAULT_FILE.exists() else None)
    if named is None:
        raise MachineMissing(f"{MACHINE_VARIABLE} is not set: it names the file of the machine to stand for")
    try:
        return msgspec.json.decode(Path(named).read_bytes(), type=Machine)
    except (OSError, msgspec.MsgspecError) as error:
        raise MachineMissing(f"{named}: {error}") from error


def encode(machine: Machine) -> bytes:
    return msgspec.json.format(msgspec.json.encode(machine))
