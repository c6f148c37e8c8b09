"""The load probe's kernels, executed line by line against what the CPU expects; and its samples."""

import re
import shutil
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodegauge_contract import NOT_READ, Int, LoadEnd, LoadReason, Sensor, Temperature, Unavailable
from nodegauge_probes.collectors.sampling import Sample
from nodegauge_probes.load import ptx, statistics, truth
from nodegauge_probes.load.ptx import A_TILES, B_TILES, MULTIPLIER, SHIFTS, THREADS, VARIANTS, WARP, Variant
from nodegauge_probes.load.record import GpuRecord, LoadRecord, Stop
from nodegauge_probes.load.statistics import Reading
from nodegauge_probes.load.watcher import UNKNOWN_STOP_C, newcomer, stop_of, too_hot
from nodegauge_probes.nccl.precondition import GpuUse

MASK, LONG = 2**32 - 1, 2**64 - 1
TABLE, RESULTS, BUFFER, COUNTER = 1 << 32, 1 << 33, 1 << 34, 1 << 40
BLOCKS, SIZE = 2, 3
VECTORS = BLOCKS * SIZE * ptx.UNROLL * 2
each_variant = pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
Memory = dict[int, int]
"""Words by their addresses; a counter of 64 bits is one, too."""


def as_float(bits: int) -> float:
    value: float = struct.unpack("<f", struct.pack("<I", bits & MASK))[0]
    return value


def as_bits(value: float) -> int:
    bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    return bits


OPERATIONS: dict[str, Callable[..., int]] = {
    **dict.fromkeys(("cvta.to.global.u64", "cvt.u64.u32", "mov.u32", "mov.u64", "mov.f32", "mov.b32"), int),
    "cvt.u32.u64": lambda x: x & MASK,
    "add.u32": lambda x, y: (x + y) & MASK,
    "sub.u32": lambda x, y: (x - y) & MASK,
    "mul.lo.u32": lambda x, y: (x * y) & MASK,
    "mul.wide.u32": lambda x, y: x * y,
    "mad.lo.u32": lambda x, y, z: (x * y + z) & MASK,
    "and.b32": lambda x, y: x & y,
    "xor.b32": lambda x, y: x ^ y,
    "or.b32": lambda x, y: x | y,
    "add.u64": lambda x, y: (x + y) & LONG,
    "mad.lo.u64": lambda x, y, z: (x * y + z) & LONG,
    "shl.b64": lambda x, y: (x << y) & LONG,
    "setp.ge.u64": lambda x, y: int(x >= y),
    "setp.eq.u64": lambda x, y: int(x == y),
    "setp.ne.u32": lambda x, y: int(x != y),
    "neg.f32": lambda x: x ^ 0x80000000,
    "fma.rn.f32": lambda x, y, z: as_bits(as_float(x) * as_float(y) + as_float(z)),
}


class Threads:
    """Threads of one block that execute the same line; a branch is taken by all of them or by none."""

    def __init__(self, numbers: Sequence[int], memory: Memory, *, block: int, **parameters: int) -> None:
        self._count, self._memory, self._parameters = len(numbers), memory, parameters
        special = {"%ctaid.x": block, "%ntid.x": SIZE, "%nctaid.x": BLOCKS}
        self.registers = {name: [value] * len(numbers) for name, value in special.items()}
        self.registers["%tid.x"] = list(numbers)

    def run(self, text: str, variant: Variant | None = None) -> None:
        lines = [line.strip().rstrip(";") for line in text.splitlines()]
        body = [line for line in lines[lines.index("{") + 1 : lines.index("}")] if line and line[0] != "."]
        at = 0
        while body[at] != "ret":
            line, at = body[at], at + 1
            guard, line = (line[1:].split(" ", 1)) if line[0] == "@" else ("", line)
            if line.endswith(":") or (guard and not any(self.registers[guard])):
                continue
            opcode, _, rest = line.partition(" ")
            if opcode == "bra":
                at = body.index(f"{rest}:")
            elif opcode.startswith("mma.") and variant is not None:
                self._multiply(variant, *re.findall(r"\{(.*?)\}", rest))
            else:
                self._execute(opcode, [part.strip("[]{} ") for part in rest.split(",")])

    def _execute(self, opcode: str, names: list[str]) -> None:
        if opcode.startswith("ld.param"):
            self.registers[names[0]] = [self._parameters[names[1]]] * self._count
        elif opcode.startswith("ld.global"):
            base, _, offset = names.pop().partition("+")
            for n, name in enumerate(names):
                addresses = [each + int(offset or 0) + 4 * n for each in self.registers[base.strip()]]
                self.registers[name] = [self._memory[address] for address in addresses]
        elif opcode.startswith("st.global"):
            for n, name in enumerate(names[1:]):
                for address, value in zip(self.registers[names[0]], self.registers[name], strict=True):
                    self._memory[address + 4 * n] = value
        elif opcode == "atom.global.add.u64":
            for address, value in zip(self.registers[names[1]], self.registers[names[2]], strict=True):
                self._memory[address] = self._memory.get(address, 0) + value
        else:
            columns = zip(*map(self._value, names[1:]), strict=True)
            self.registers[names[0]] = [OPERATIONS[opcode](*column) for column in columns]

    def _value(self, name: str) -> list[int]:
        if name.startswith("%"):
            return self.registers[name]
        return [0 if name == "0f00000000" else int(name, 0)] * self._count

    def _multiply(self, variant: Variant, *groups: str) -> None:
        """D = A x B + C with the layouts of `truth`, which the simulated CUDA has a second time."""
        target, left, right, addend = (each.split(", ") for each in groups)
        a, b = self._tile(left, truth._a(variant)), self._tile(right, truth._b(variant))
        for n, (out, old) in enumerate(zip(target, addend, strict=True)):
            sums = []
            for lane, elements in enumerate(truth._c(variant)):
                row, column = elements[n]
                products = [a[row, k] * b[k, column] for k in range(variant.k)]
                sums.append(as_bits(sum(products, as_float(self.registers[old][lane]))))
            self.registers[out] = sums

    def _tile(self, names: list[str], fragment: truth.Fragment) -> dict[truth.Element, float]:
        return {
            element: value
            for lane in range(WARP)
            for name, elements in zip(names, fragment[lane], strict=True)
            for element, value in zip(
                elements, struct.unpack("<2e", struct.pack("<I", self.registers[name][lane])), strict=True
            )
        }


@each_variant
@pytest.mark.parametrize("loops", [2, 7])
def test_the_text_computes_what_the_cpu_expects(variant: Variant, loops: int) -> None:
    table = {TABLE + 4 * n: word for n, (word,) in enumerate(struct.iter_unpack("<I", truth.table(variant)))}
    memory = dict(table)
    warp = Threads(range(WARP), memory, block=5, p_table=TABLE, p_results=RESULTS, p_loops=loops)
    warp.run(ptx._burn(variant), variant)
    addresses = [RESULTS + 4 * (5 * THREADS + lane) for lane in range(WARP)]
    assert memory == table | dict(zip(addresses, truth.expected(variant, loops=loops), strict=True))


def everywhere(text: str, memory: Memory, **parameters: int) -> None:
    for block in range(BLOCKS):
        for thread in range(SIZE):
            known = {"p_buffer": BUFFER, "p_vectors": VECTORS, "p_wrong": COUNTER}
            Threads([thread], memory, block=block, **known, **parameters).run(text)


def wrong(memory: Memory, *, rounds: int = 2) -> int:
    everywhere(ptx._STREAM, memory, p_rounds=rounds)
    return memory.get(COUNTER, 0)


@pytest.fixture
def filled() -> Memory:
    memory: Memory = {}
    everywhere(ptx._FILL, memory)
    return memory


def test_every_word_gets_its_own_pattern_and_is_right_in_every_round(filled: Memory) -> None:
    assert filled == {BUFFER + 4 * n: n * ptx.PATTERN % 2**32 for n in range(4 * VECTORS)}
    assert wrong(filled) == 0


@pytest.mark.parametrize("word", [0, 1, 2, 3, 4 * VECTORS - 1, 2 * VECTORS + 1])
@pytest.mark.parametrize("bit", [0, 31])
def test_one_wrong_bit_counts_once_a_round(filled: Memory, word: int, bit: int) -> None:
    filled[BUFFER + 4 * word] ^= 1 << bit
    assert wrong(filled, rounds=3) == 3


def ptxas() -> str | None:
    """The assembler of CUDA 12, where `pip install nvidia-cuda-nvcc-cu12` or a toolkit brought one."""
    if assembler := shutil.which("ptxas"):
        return assembler
    try:
        import nvidia.cuda_nvcc as wheel  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return None
    return str(Path(wheel.__path__[0]) / "bin/ptxas")


@each_variant
def test_ptxas_takes_the_kernels_for_every_gpu_that_may_get_them(variant: Variant, tmp_path: Path) -> None:
    """The driver compiles with the same assembler; with two blocks per processor, registers must suffice."""
    assembler = ptxas()
    if assembler is None:
        pytest.skip("no ptxas: pip install nvidia-cuda-nvcc-cu12")
    text = tmp_path / "load.ptx"
    text.write_text(ptx.source(variant))
    for target in (50, 60, 61, 70, 75, 80, 86, 89, 90, 100, 120):
        if divmod(target, 10) >= variant.since:
            command = [assembler, "-v", f"-arch=sm_{target}", text, "-o", tmp_path / "load.cubin"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            registers = max(map(int, re.findall(r"Used (\d+) registers", done.stderr)))
            assert registers * ptx.THREADS * ptx.BLOCKS_PER_SM <= 65_536, (target, registers)
            assert not re.search(r"[1-9]\d* bytes spill", done.stderr), done.stderr


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        ((3, 7), None),
        ((5, 2), "f32-fma"),
        ((7, 0), "f16-m8n8k4"),
        ((7, 5), "f16-m16n8k8"),
        ((8, 0), "f16-m16n8k16"),
        ((12, 1), "f16-m16n8k16"),
        ((15, 0), "f16-m16n8k16"),
    ],
)
def test_a_gpu_gets_the_newest_instruction_that_it_has(capability: tuple[int, int], name: str | None) -> None:
    variant = ptx.variant_for(capability)
    assert (variant.name if variant else None) == name


@each_variant
def test_every_product_is_multiplied_as_often_as_it_is_counted(variant: Variant) -> None:
    text = ptx.source(variant)
    products = len(re.findall(r"mma\.sync|fma\.rn", text))
    assert products == A_TILES * B_TILES * SHIFTS
    assert variant.operations == 2 * variant.m * variant.n * variant.k * products


@each_variant
def test_every_sum_is_exact(variant: Variant) -> None:
    """In the worst order of its additions no partial sum leaves the whole numbers that f32 has."""
    a, b = truth.matrices(variant)
    for j in range(B_TILES):
        for row in range(variant.m):
            for column in range(variant.n):
                parts = sum(
                    abs(a[i][row][k] * b[(j + r) % B_TILES][k][column])
                    for i in range(A_TILES)
                    for r in range(SHIFTS)
                    for k in range(variant.k)
                )
                assert parts < 1 << 24


@each_variant
def test_one_wrong_bit_of_one_sum_changes_the_checksum(variant: Variant) -> None:
    lanes = truth.expected(variant, loops=1001)
    assert len(lanes) == WARP
    for bit in range(32):
        other = [lanes[0] ^ 1 << bit, *lanes[1:]]
        assert truth.checksum(other) != truth.checksum(lanes)
    assert {pow(MULTIPLIER, power, 2**32) & 1 for power in range(9)} == {1}


NO = Unavailable("NVML_ERROR_NOT_SUPPORTED")
GPU = {"utilization": 100, "temperature": 50, "memory_temperature": NO, "power_mw": 300_000, "sm_mhz": 1_500}
USUAL = Sample(**GPU, reasons=0, pstate=0, generation=4, width=16)


def reading(ms: int, *, margin: Int = NO, **members: Int) -> Reading:
    return Reading(ms=ms, sample=replace(USUAL, **members), margin=margin, memory_mhz=2_000)


def series(member: str, values: Sequence[Int], *, step: int = 500) -> list[Reading]:
    return [reading(n * step, **{member: value}) for n, value in enumerate(values)]


def test_steady_is_the_last_third_of_the_time() -> None:
    """Of the time, not of the samples: a pause does not make the beginning count."""
    uneven = [reading(ms) for ms in (0, 100, 200, 300, 9_000, 20_000, 25_000, 30_000)]
    assert [each.ms for each in statistics.steady(uneven)] == [20_000, 25_000, 30_000]
    assert statistics.steady([]) == []
    assert len(statistics.steady([reading(0)])) == 1


@pytest.mark.parametrize(
    ("celsius", "slope"),
    [
        ([60, 60, 60, 60, 60], 0),
        ([60, 61, 62, 63, 64], 120),
        ([64, 63, 62, 61, 60], -120),
        ([60, NO, 62, 63, 64], 120),
        *((few, None) for few in ([], [60], [60, 61, 62], [NO] * 5)),
    ],
)
def test_a_slope_is_degrees_per_minute(celsius: list[Int], slope: float | None) -> None:
    """Half a second between samples; an unreadable one is left out; two whole degrees are any slope."""
    seen = statistics.slope_per_minute(series("temperature", celsius), lambda each: each.sample.temperature)
    assert isinstance(seen, Unavailable) if slope is None else seen == pytest.approx(slope)


def test_the_time_to_the_limit_is_that_of_the_first_sample_there() -> None:
    rising = series("power_mw", [80_000, 269_999, 270_000, 300_000, 100_000])
    assert statistics.reached_ms(rising, limit_mw=300_000) == 1_000
    assert isinstance(statistics.reached_ms(rising, limit_mw=700_000), Unavailable)
    assert statistics.reached_ms(rising, limit_mw=NO) == NO
    unreadable = series("power_mw", [NO, NO])
    assert isinstance(statistics.reached_ms(unreadable, limit_mw=300_000), Unavailable)


def test_reasons_have_their_first_moment() -> None:
    masks = series("reasons", [0x4, NO, 0x4 | 0x20, 0x20, 0x4])
    assert statistics.reasons(masks) == [
        LoadReason(bit=0x4, samples=3, longest=1, first_ms=0),
        LoadReason(bit=0x20, samples=2, longest=2, first_ms=1_000),
    ]


ABSOLUTE = Temperature(slowdown=89, memory_max=95, gpu_max=85)
DISTANCES = Temperature(slowdown=NO, margin=49, tlimit_slowdown=-2, tlimit_gpu_max=0)


def test_the_stop_is_below_the_vendor_s_slowdown_and_there_without_one() -> None:
    assert stop_of(ABSOLUTE, below=3) == Stop(celsius=86, margin=NOT_READ, memory_celsius=92)
    assert (stop_of(DISTANCES, below=3).celsius, stop_of(DISTANCES, below=3).margin) == (NO, 1)
    both = stop_of(replace(DISTANCES, slowdown=89), below=10)
    assert (both.celsius, both.margin) == (79, 8)
    assert stop_of(Temperature(), below=3).celsius == UNKNOWN_STOP_C
    used_up = stop_of(Temperature(margin=0, tlimit_slowdown=-2), below=3)
    assert used_up.celsius == UNKNOWN_STOP_C
    assert isinstance(used_up.margin, Unavailable)


@pytest.mark.parametrize(
    ("hot", "stop"),
    [
        (reading(0, temperature=86), Stop(celsius=86)),
        (reading(0, margin=1), Stop(margin=1)),
        (reading(0, memory_temperature=95), Stop(celsius=86, memory_celsius=92)),
    ],
)
def test_any_of_three_temperatures_stops_the_load(hot: Reading, stop: Stop) -> None:
    assert too_hot(hot, stop)
    cooler = Stop(celsius=87, margin=0, memory_celsius=96)
    assert too_hot(hot, cooler) == ""


def test_what_cannot_be_read_stops_nothing() -> None:
    silent = reading(0, temperature=NO, margin=NO)
    assert too_hot(silent, Stop(celsius=86, margin=1, memory_celsius=92)) == ""


def use(processes: Int = 1, used_mib: Int = 3_000) -> GpuUse:
    return GpuUse(processes=processes, used_mib=used_mib, free_mib=NO, virtualization=NO)


@pytest.mark.parametrize(
    ("now", "somebody"),
    [
        (use(), False),
        (use(processes=2), True),
        (use(processes=0, used_mib=3_900), False),
        (use(processes=NO, used_mib=4_100), True),
        (use(processes=NO, used_mib=NO), False),
    ],
)
def test_a_newcomer_shows_as_process_or_as_memory(now: GpuUse, somebody: bool) -> None:
    """PID namespaces hide processes; a little more memory is the driver's own."""
    assert bool(newcomer(use(), now)) is somebody


def test_what_ended_a_gpu_first_counts() -> None:
    record = GpuRecord(index=0, uuid="GPU-0", stop=Stop(), limit_mw=300_000)
    assert record.build().ended == "cut"
    record.end(LoadEnd.FAILED, "CUDA said so", seconds=1.25)
    record.end(LoadEnd.GAVE_WAY, "later", seconds=9)
    built = record.build()
    assert (built.ended, built.message, built.seconds) == ("failed", "CUDA said so", 1.25)


def sensor(name: str, value: Int, chip: str = "pmbus") -> Sensor:
    return Sensor(chip=chip, name=name, value=value)


def test_rails_and_watts_are_followed_from_idle_to_load() -> None:
    record = LoadRecord(planned=30, expected=0)
    idle = [sensor("in1", 12_100), sensor("in1", 12_000), sensor("in2", 230_000), sensor("power1", 200)]
    record.add_sensors([*idle, sensor("fan1", 12_000), sensor("curr1", 12_000)], loaded=False)
    for millivolts in (11_900, 11_500, NO):
        record.add_sensors([sensor("in1", 12_090), sensor("in1", millivolts)], loaded=True)
    first, second, watts = record.build().sensors
    assert (first.name, first.idle, first.min, first.samples) == ("in1", 12_100, 12_090, 3)
    assert (second.idle, second.loaded, second.min, second.max) == (12_000, 11_700, 11_500, 11_900)
    assert (watts.name, watts.idle, watts.loaded) == ("power1", 200, NOT_READ)
