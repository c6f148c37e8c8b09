"""The kernels of the load probe: they assemble for every GPU, and the CPU knows what they must compute."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from nodegauge_probes.load import ptx, truth
from nodegauge_probes.load.ptx import A_TILES, B_TILES, MULTIPLIER, SHIFTS, VARIANTS, WARP, Variant

TARGETS = (50, 60, 61, 70, 75, 80, 86, 89, 90, 100, 120)
each_variant = pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)


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
    for target in TARGETS:
        if divmod(target, 10) >= variant.since:
            done = subprocess.run(
                [assembler, "-v", f"-arch=sm_{target}", text, "-o", tmp_path / "load.cubin"],
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            registers = max(map(int, re.findall(r"Used (\d+) registers", done.stderr)))
            assert registers * ptx.THREADS * ptx.BLOCKS_PER_SM <= 65_536, (target, registers)
            assert not re.search(r"[1-9]\d* bytes spill", done.stderr), done.stderr


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        ((3, 7), None),
        ((5, 2), "f32-fma"),
        ((6, 1), "f32-fma"),
        ((7, 0), "f16-m8n8k4"),
        ((7, 2), "f16-m8n8k4"),
        ((7, 5), "f16-m16n8k8"),
        ((8, 0), "f16-m16n8k16"),
        ((9, 0), "f16-m16n8k16"),
        ((12, 1), "f16-m16n8k16"),
        ((15, 0), "f16-m16n8k16"),
    ],
)
def test_a_gpu_gets_the_newest_instruction_that_it_has(capability: tuple[int, int], name: str | None) -> None:
    """One that is newer than this project gets the newest one."""
    variant = ptx.variant_for(capability)
    assert (variant.name if variant else None) == name


@each_variant
def test_every_product_is_multiplied_as_often_as_it_is_counted(variant: Variant) -> None:
    """The operations behind the TFLOPS are those in the text."""
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


def naive(variant: Variant, *, loops: int, lane: int) -> int:
    """One thread, product by product, in f32 as struct has it."""
    a, b = truth.matrices(variant)
    elements, h, sign = truth._c(variant)[lane], lane, 1
    sums = [[0 for _ in elements] for _ in range(B_TILES)]
    for _ in range(loops):
        for i in range(A_TILES):
            for r in range(SHIFTS):
                for j in range(B_TILES):
                    for n, (row, column) in enumerate(elements):
                        right = b[(j + r) % B_TILES]
                        sums[j][n] += sign * sum(a[i][row][k] * right[k][column] for k in range(variant.k))
        for total in (total for tile in sums for total in tile):
            (bits,) = struct.unpack("<I", struct.pack("<f", total))
            h = (h * MULTIPLIER + bits) % 2**32
        sign = -sign
    return h


@each_variant
@pytest.mark.parametrize("loops", [1, 2, 3, 6])
def test_the_cpu_computes_what_the_kernel_says(variant: Variant, loops: int) -> None:
    """By the short way and step by step, whether the last loop adds or subtracts."""
    lanes = truth.expected(variant, loops=loops)
    assert [lanes[lane] for lane in (0, 5, 31)] == [
        naive(variant, loops=loops, lane=lane) for lane in (0, 5, 31)
    ]


@each_variant
def test_one_wrong_bit_of_one_sum_changes_the_checksum(variant: Variant) -> None:
    """An odd factor loses nothing."""
    lanes = truth.expected(variant, loops=1001)
    assert len(lanes) == WARP
    for bit in range(32):
        other = [lanes[0] ^ 1 << bit, *lanes[1:]]
        assert truth.checksum(other) != truth.checksum(lanes)
    assert {pow(MULTIPLIER, power, 2**32) & 1 for power in range(9)} == {1}


@each_variant
def test_the_table_holds_the_matrices(variant: Variant) -> None:
    """A word for each register of each thread, and every element of every tile is in it."""
    form, size = ("<f", 4) if variant.c == 1 else ("<e", 2)
    data = truth.table(variant)
    assert len(data) == 4 * WARP * (A_TILES * variant.a + B_TILES * variant.b)
    numbers = [struct.unpack(form, data[n : n + size])[0] for n in range(0, len(data), size)]
    a, b = truth.matrices(variant)
    assert set(numbers) == {value for tile in a + b for row in tile for value in row}
