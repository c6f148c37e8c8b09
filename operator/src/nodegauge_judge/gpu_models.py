"""The one table of GPU models, `gpu_models.yaml`: whatever the judge and the command line know of a product.

All code asks `known_models()`, so a new model is a new row there, and a test.  It tells what the driver
does not: how a model's boards are wired, and what published machines reached.  It must not repeat what the
driver reads (ECC, temperature margins, limits): there the reading is right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from importlib.resources import files
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from nodegauge_contract.nvlink import ModelLinks

DATA = "gpu_models.yaml"
JSON = b'[{"'
"""How the table begins in the archive for hosts, whose YAML reader is not compiled."""
RINGS, NVLS = "rings", "NVLS"
_Gbps = Annotated[float, Meta(gt=0, le=100_000)]
_Count = Annotated[int, Meta(ge=1, le=64)]
_Text = Annotated[str, Meta(min_length=1, max_length=512)]


class TableInvalid(ValueError):
    """A table that cannot be used; the message names the row and the field."""


class Form(StrEnum):
    """`module`: SXM or superchip, always wired to its peers; `card`: PCIe, bridged or not."""

    MODULE = "module"
    CARD = "card"
    UNKNOWN = "unknown"


class Joins(StrEnum):
    """What a model's NVLinks lead to."""

    SWITCH = "switch"
    """NVSwitches, all of a GPU's links."""
    MESH = "mesh"
    """The other GPUs of the board, directly."""
    BRIDGE = "bridge"
    """Another card, over bridges that may be missing."""
    UNKNOWN = ""
    """The name does not tell, or no source does."""


class Bandwidth(Struct, frozen=True, kw_only=True):
    """What a number of GPUs reach in one collective at one size."""

    count: Annotated[int, Meta(ge=2, le=64)]
    """GPUs that take part."""
    collective: Annotated[str, Meta(pattern="^(all_reduce|all_gather|reduce_scatter)$")]
    """As nccl-tests names it."""
    bytes: Annotated[int, Meta(ge=1, le=2**40)]
    """Message size."""
    busbw: _Gbps
    """GB/s (1e9) as nccl-tests defines bus bandwidth."""
    nvls: bool | None = None
    """Whether NCCL ran NVLS; null for either."""
    link: Annotated[str, Meta(pattern="^(nvlink|pcie)?$")] = ""
    """nvlink, pcie, or empty for either."""
    floor: Annotated[float, Meta(ge=0, le=100_000)] = 0.0
    """GB/s below which bandwidth is too low; 0 for `busbwExpectedShare` of `busbw`."""
    kind: Annotated[str, Meta(pattern="^(measured|accept-floor|complaint|reference)$")] = "measured"
    """measured; accept-floor (`busbw` is itself the floor); or a kind without a floor: complaint (somebody
    measured it and asked why it is so low), reference (through host memory or computed, for comparison)."""
    source: Annotated[str, Meta(max_length=512)] = ""
    """Where the number comes from."""


class Entry(Bandwidth, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A bandwidth in the table: there a misspelt field is an error."""

    kind: Annotated[str, Meta(pattern="^(measured|accept-floor|derived|complaint|reference)$")] = "measured"
    """As for all, or derived: no publication has this size, so it is a stated share of one that has, and its
    floor only warns."""


class Reached(Struct, frozen=True, forbid_unknown_fields=True):
    """What a published machine with NVSwitches reached: a floor from link rates that is no higher may set a
    taint."""

    algorithm: Annotated[str, Meta(pattern="^(rings|NVLS)$")]
    """Rings need one collective: bus bandwidth shows what the links carry whatever the collective
    (nccl-tests, doc/PERFORMANCE.md)."""
    gpus: tuple[_Count, _Count]
    """The fewest and the most GPUs that the machine stands for."""
    gbps: _Gbps
    """GB/s of bus bandwidth; for NVLS on 8 GPUs."""
    source: _Text
    """Who published it."""


class Published(Struct, frozen=True):
    """A `Reached` with what its model has: by these all machines of a compute capability are compared."""

    sm: int
    """Compute capability times ten."""
    algorithm: str
    """`RINGS` or `NVLS`."""
    ranks: range
    """The GPU counts that it stands for."""
    share: float
    """Bus bandwidth as a share of the NVLinks' rate of one GPU, 0 to about 1 (NVLS: more)."""
    source: str
    """Who published it."""


class NvLink(ModelLinks, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The NVLinks of one GPU of a model, beside `links` and `gbps`."""

    generation: Annotated[int, Meta(ge=1, le=9)]
    """NVIDIA's number: 1 is Pascal's, 5 Blackwell's."""
    joins: Joins = Joins.UNKNOWN
    """What the links lead to."""
    pair: Annotated[int, Meta(ge=0, le=36)] = 0
    """Where they join two GPUs directly, a healthy pair has a multiple of this: what one bridge carries, or
    what a board without NVSwitches wires; 0: unknown."""


class Board(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The boards of a module, if its name alone tells them: a log of nccl-tests names no links."""

    modules: _Count
    """GPUs of the largest board."""
    switches: Annotated[int, Meta(ge=0, le=32)] = 0
    """NVSwitches of that board; 0: its GPUs are joined directly."""
    mesh: Annotated[int, Meta(ge=0, le=8)] = 0
    """GPUs of a smaller board without NVSwitches, where each pair has its part of a GPU's links; 0 if there
    is none.  That many GPUs or fewer may be on either board."""

    def tells(self, ranks: int) -> bool:
        """Whether the links of so many GPUs are known: a part of a mesh has too few to tell."""
        return 2 <= ranks <= self.modules if self.switches else ranks == self.modules

    def switched(self, ranks: int) -> bool:
        """Whether so many GPUs are certainly joined by NVSwitches."""
        return self.switches > 0 and ranks > self.mesh

    def share(self, ranks: int) -> float:
        """The least part of a GPU's NVLinks that leads to the others of so many, 0 to 1."""
        return (ranks - 1) / (self.mesh - 1) if ranks <= self.mesh else 1.0


class Peak(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Published dense peak of the tensor cores, TFLOPS (without sparsity); a precision without a number is
    unknown, or the GPU does not have it."""

    bf16: Annotated[float, Meta(gt=0, le=100_000)] | None = None
    fp16: Annotated[float, Meta(gt=0, le=100_000)] | None = None
    """With fp32 sums."""
    fp8: Annotated[float, Meta(gt=0, le=100_000)] | None = None
    tf32: Annotated[float, Meta(gt=0, le=100_000)] | None = None
    """What fp32 training computes in."""
    source: _Text
    """Who published them."""


class GpuModel(Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """One row: a model, or a product line whose models have no rows of their own."""

    model: _Text
    """What people call it; unique."""
    gpu: Annotated[tuple[_Text, ...], Meta(min_length=1, max_length=8)]
    """Case-insensitive globs over NVML's product name, of which one must match."""
    source: _Text
    """Where form, links, boards and clocks come from."""
    slug: Annotated[str, Meta(pattern="^([a-z0-9]{2,16})?$")] = ""
    """Its word in the label nodegauge.dev/class, which never changes; empty where the row is of several
    models, or its name does not tell the form: such nodes have no class."""
    form: Form = Form.UNKNOWN
    """How it is mounted; unknown if the name does not tell."""
    capability: Annotated[str, Meta(pattern=r"^(\d{1,2}\.\d)?$")] = ""
    """Compute capability, as in "9.0"; empty: not needed."""
    memory_gb: tuple[Annotated[int, Meta(ge=1, le=4096)], ...] = ()
    """GB on the data sheet, of each variant; for people."""
    watts: tuple[Annotated[int, Meta(ge=1, le=5000)], ...] = ()
    """Default power limit in W on the data sheet, of each variant; for people."""
    nvls: bool | None = None
    """Whether it can use NVLink SHARP (NCCL's NVLS), which came with Hopper (NCCL user guide,
    NCCL_NVLS_ENABLE); null: unknown."""
    boards: tuple[_Count, ...] = ()
    """GPUs of whole boards or machines beside those of `board`; any other number is a part of one."""
    base_mhz: dict[str, Annotated[int, Meta(ge=100, le=5000)]] = {}
    """Base SM clock in MHz, which NVML does not report, by NVML's name without "NVIDIA ".  Where sources
    differ, the lower number is taken."""
    nvlink: NvLink | None = None
    """Its NVLinks; null: none, or unknown."""
    board: Board | None = None
    """Its boards; null: a card, or the name does not tell."""
    reached: tuple[Reached, ...] = ()
    """What published machines of this model with NVSwitches reached."""
    bandwidth: tuple[Entry, ...] = ()
    """Published bandwidth, in the order in which the entries are tried."""
    tflops: Peak | None = None
    """Published peak; null: no source."""

    def __post_init__(self) -> None:
        if (self.board or self.reached) and not (self.nvlink and self.capability):
            raise ValueError("board and reached need nvlink and capability")

    @property
    def sm(self) -> int:
        """Compute capability times ten, as NCCL counts it; 0 if the row has none."""
        return int(self.capability.replace(".", "") or 0)

    @property
    def nvlink_gbps(self) -> float:
        """GB/s one way of all NVLinks of one GPU; 0 without any."""
        return self.nvlink.links * self.nvlink.gbps if self.nvlink else 0.0

    @property
    def links_behind_switch(self) -> int:
        """NVLinks that a healthy GPU has behind NVSwitches; 0 if no source tells."""
        return self.nvlink.links if self.nvlink and self.nvlink.joins is Joins.SWITCH else 0

    @property
    def sizes(self) -> tuple[int, ...]:
        """GPUs of each whole board, the smallest first; empty if no source tells."""
        of_board = (self.board.mesh, self.board.modules) if self.board else ()
        return tuple(sorted({*self.boards, *of_board} - {0}))

    def whole(self, gpus: int, *, switched: bool) -> int:
        """GPUs of the smallest board that holds so many; 0 if none does, or no source tells.  `switched`:
        whether NVSwitches join them, which the board of `mesh` GPUs does not have."""
        no_switch = self.board.mesh if self.board and switched else 0
        return min((size for size in self.sizes if size >= gpus and size != no_switch), default=0)

    def links_without_switch(self, gpus: int) -> int:
        """NVLinks of each of so many GPUs, if they are a whole board without NVSwitches; else 0.

        No board is known whose GPUs could not all be read (`gpus` is 0 then).
        """
        mesh = self.board.mesh if self.board else 0
        if self.nvlink is not None and self.nvlink.joins is Joins.MESH:
            mesh = max(self.sizes, default=0)
        return self.nvlink.links if self.nvlink is not None and gpus and gpus == mesh else 0


NO_ROW = GpuModel(model="unknown", gpu=("*",), source="no row")


class GpuModels(Struct, frozen=True, eq=False):
    """The rows of a table, in its order."""

    rows: tuple[GpuModel, ...]

    def find(self, name: object) -> GpuModel:
        """The row of NVML's product name; `NO_ROW` for an unknown or unread one."""
        return _find(self, name) if isinstance(name, str) else NO_ROW

    def links(self, name: str) -> ModelLinks | None:
        """The NVLinks of a product, if it is known to have some."""
        return self.find(name).nvlink

    def rates(self) -> list[float]:
        """GB/s per NVLink and direction that there are."""
        return sorted({row.nvlink.gbps for row in self.rows if row.nvlink})

    def base_mhz(self, name: str) -> int | None:
        """Base SM clock of a product in MHz; None if it is not known."""
        return self.find(name).base_mhz.get(name.removeprefix("NVIDIA "))

    def published(self) -> Iterator[Published]:
        """What machines with NVSwitches reached, with the capability and the share of the links' rate."""
        for row in self.rows:
            for reached in row.reached:
                ranks = range(reached.gpus[0], reached.gpus[1] + 1)
                yield Published(
                    row.sm, reached.algorithm, ranks, reached.gbps / row.nvlink_gbps, reached.source
                )


@lru_cache(maxsize=1024)
def _find(models: GpuModels, name: str) -> GpuModel:
    return next((row for row in models.rows if any(is_model(name, glob) for glob in row.gpu)), NO_ROW)


def is_model(name: str, pattern: str) -> bool:
    """Whether NVML's product name matches the glob, ignoring case."""
    return fnmatchcase(name.lower(), pattern.lower())


@cache
def known_models() -> GpuModels:
    """The table that comes with this package."""
    return parse(files(__package__).joinpath(DATA).read_bytes())


def parse(data: bytes) -> GpuModels:
    """A table from its YAML or JSON.  Raises `TableInvalid`, which names row and field."""
    decode = msgspec.json.decode if data.startswith(JSON) else msgspec.yaml.decode
    try:
        rows = decode(data, type=list[dict[str, object]])
    except msgspec.DecodeError as error:
        raise TableInvalid(f"not a list of rows: {error}") from None
    models = GpuModels(tuple(_row(number, row) for number, row in enumerate(rows, 1)))
    if twice := [name for name, count in Counter(row.model for row in models.rows).items() if count > 1]:
        raise TableInvalid(f"{twice[0]}: two rows have this model")
    return models


def _row(number: int, row: dict[str, object]) -> GpuModel:
    try:
        return msgspec.convert(row, GpuModel)
    except msgspec.ValidationError as error:
        raise TableInvalid(f"row {number} ({row.get('model', 'without model')}): {error}") from None
