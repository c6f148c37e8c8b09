"""What the kernel `ptx.burn` must compute, in whole numbers on the CPU, and the table that it reads.

The layouts say which element of a matrix is in which register of which thread (PTX ISA, "Matrix Fragments for
mma.m16n8k16", ".m16n8k8", ".m8n8k4").
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence

from nodegauge_probes.load.ptx import A_TILES, B_TILES, MULTIPLIER, SHIFTS, WARP, Variant

LARGEST = 255
"""Of a matrix element: 8 of a half's 11 bits, and 256 products stay below 2^24, where f32 is still exact."""
MASK = 0xFFFFFFFF

Matrix = list[list[int]]
Element = tuple[int, int]
"""Row and column."""


def matrices(variant: Variant) -> tuple[list[Matrix], list[Matrix]]:
    """A (m x k) and B (k x n): fixed numbers without a pattern, none of them zero."""
    numbers = _numbers()

    def matrix(rows: int, columns: int) -> Matrix:
        return [[next(numbers) for _ in range(columns)] for _ in range(rows)]

    return (
        [matrix(variant.m, variant.k) for _ in range(A_TILES)],
        [matrix(variant.k, variant.n) for _ in range(B_TILES)],
    )


def _numbers() -> Iterator[int]:
    """A linear congruential generator (Numerical Recipes); its upper bits are the random ones."""
    state = 20
    while True:
        state = (state * 1664525 + 1013904223) & MASK
        size = 1 + (state >> 16) % LARGEST
        yield size if state >> 31 else -size


def table(variant: Variant) -> bytes:
    """The kernel's table: for each register of A and B a word of each thread of a warp."""
    form = "<f" if variant.c == 1 else "<e"
    a, b = matrices(variant)
    values = [
        b"".join(struct.pack(form, matrix[row][column]) for row, column in elements[lane][register])
        for tiles, elements, registers in ((a, _a(variant), variant.a), (b, _b(variant), variant.b))
        for matrix in tiles
        for register in range(registers)
        for lane in range(WARP)
    ]
    return b"".join(values)


def expected(variant: Variant, *, loops: int) -> list[int]:
    """The result of each thread of a warp after so many loops."""
    a, b = matrices(variant)
    whole = [[sum(each[i][k] for each in a) for k in range(variant.k)] for i in range(variant.m)]
    sums = []
    for j in range(B_TILES):
        right = [b[(j + r) % B_TILES] for r in range(SHIFTS)]
        total = [[sum(each[k][n] for each in right) for n in range(variant.n)] for k in range(variant.k)]
        sums.append(_product(whole, total))
    elements = _c(variant)
    lanes = []
    for lane in range(WARP):
        values = [matrix[row][column] for matrix in sums for row, column in elements[lane]]
        odd, even = _fold([_bits(value) for value in values]), _fold([0] * len(values))
        pairs = _power(_then(odd, even), loops // 2)
        scale, offset = _then(pairs, odd) if loops % 2 else pairs
        lanes.append((lane * scale + offset) & MASK)
    return lanes


def checksum(lanes: Sequence[int]) -> str:
    """Of the results of one warp: the same on every GPU that executes the same variant and loops."""
    return f"{zlib.crc32(struct.pack(f'<{len(lanes)}I', *lanes)):08x}"


def _product(left: Matrix, right: Matrix) -> Matrix:
    columns = list(zip(*right, strict=True))
    return [[sum(x * y for x, y in zip(row, column, strict=True)) for column in columns] for row in left]


def _bits(value: int) -> int:
    result: int = struct.unpack("<I", struct.pack("<f", value))[0]
    return result


Affine = tuple[int, int]
"""h becomes scale x h + offset, modulo 2^32."""


def _fold(values: Sequence[int]) -> Affine:
    scale, offset = 1, 0
    for value in values:
        scale, offset = scale * MULTIPLIER & MASK, (offset * MULTIPLIER + value) & MASK
    return scale, offset


def _then(first: Affine, second: Affine) -> Affine:
    return first[0] * second[0] & MASK, (first[1] * second[0] + second[1]) & MASK


def _power(step: Affine, times: int) -> Affine:
    result: Affine = (1, 0)
    while times:
        if times & 1:
            result = _then(result, step)
        step, times = _then(step, step), times >> 1
    return result


Fragment = list[list[list[Element]]]
"""By thread and register: the elements in it, the lowest bits first."""


def _a(variant: Variant) -> Fragment:
    if variant.name == "f32-fma":
        return [[[(lane, 0)]] for lane in range(WARP)]
    if variant.name == "f16-m8n8k4":
        return [[[(_octet(lane), 2 * r), (_octet(lane), 2 * r + 1)] for r in (0, 1)] for lane in range(WARP)]
    return [
        [
            [(lane // 4 + 8 * (r % 2), lane % 4 * 2 + 8 * (r // 2) + half) for half in (0, 1)]
            for r in range(variant.a)
        ]
        for lane in range(WARP)
    ]


def _b(variant: Variant) -> Fragment:
    if variant.name == "f32-fma":
        return [[[(0, 0)]] for _ in range(WARP)]
    if variant.name == "f16-m8n8k4":
        columns = [lane % 4 + 4 * (lane // 16) for lane in range(WARP)]
        return [[[(2 * r, column), (2 * r + 1, column)] for r in (0, 1)] for column in columns]
    return [
        [[(lane % 4 * 2 + 8 * r + half, lane // 4) for half in (0, 1)] for r in range(variant.b)]
        for lane in range(WARP)
    ]


def _c(variant: Variant) -> list[list[Element]]:
    """By thread: the element of each accumulator."""
    if variant.name == "f32-fma":
        return [[(lane, 0)] for lane in range(WARP)]
    if variant.name == "f16-m8n8k4":
        return [
            [
                (lane % 16 // 4 * 8 + 4 * (lane // 16) + (lane & 1) + (i & 2), (i & 4) + (lane & 2) + (i & 1))
                for i in range(8)
            ]
            for lane in range(WARP)
        ]
    return [[(lane // 4 + 8 * (i // 2), lane % 4 * 2 + i % 2) for i in range(4)] for lane in range(WARP)]


def _octet(lane: int) -> int:
    """The row of A, of the four products stacked, that a thread holds for mma.m8n8k4."""
    return lane % 16 // 4 * 8 + lane % 4 + 4 * (lane // 16)
