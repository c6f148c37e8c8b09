"""The text of the kernel `burn`, executed line by line for one warp: it computes what the CPU expects."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

import pytest

from nodegauge_probes.load import ptx, truth
from nodegauge_probes.load.ptx import THREADS, VARIANTS, WARP, Variant

MASK = 0xFFFFFFFF
TABLE, RESULTS = 1 << 32, 1 << 33
Registers = dict[str, list[int]]


def as_float(bits: int) -> float:
    value: float = struct.unpack("<f", struct.pack("<I", bits & MASK))[0]
    return value


def as_bits(value: float) -> int:
    bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    return bits


def halves(bits: int) -> tuple[float, float]:
    low, high = struct.unpack("<2e", struct.pack("<I", bits & MASK))
    return low, high


class Warp:
    """Thirty-two threads that execute the same line; the branch is taken by all of them or by none."""

    def __init__(self, variant: Variant, *, loops: int, block: int) -> None:
        self._variant = variant
        self._parameters = {"p_table": TABLE, "p_results": RESULTS, "p_loops": loops}
        self._special = {"%tid.x": list(range(WARP)), "%ctaid.x": [block] * WARP}
        self._memory = truth.table(variant)
        self.registers: Registers = {}
        self.stored: dict[int, int] = {}

    def run(self, text: str) -> None:
        lines = [line.strip().rstrip(";") for line in text.splitlines()]
        body = lines[lines.index("{") + 1 : lines.index("}")]
        at = 0
        while body[at] != "ret":
            line = body[at]
            at += 1
            if line.startswith("@%p bra"):
                at = body.index("LOOP:") if any(self.registers["%p"]) else at
            elif not line.endswith(":") and not line.startswith(".reg"):
                self._execute(line)

    def _value(self, operand: str) -> list[int]:
        if operand in self._special:
            return self._special[operand]
        if operand.startswith("%"):
            return self.registers[operand]
        return [0 if operand == "0f00000000" else int(operand, 0)] * WARP

    def _execute(self, line: str) -> None:
        opcode, _, rest = line.partition(" ")
        if opcode.startswith("mma."):
            return self._multiply(*re.findall(r"\{(.*?)\}", rest))
        target, *operands = (part.strip() for part in rest.split(","))
        if opcode.startswith("ld.param"):
            self.registers[target] = [self._parameters[operands[0].strip("[]")]] * WARP
        elif opcode.startswith("ld.global"):
            base, offset = re.findall(r"%\w+|\d+", operands[0])
            where = [each - TABLE + int(offset) for each in self.registers[base]]
            self.registers[target] = [struct.unpack_from("<I", self._memory, each)[0] for each in where]
        elif opcode.startswith("st.global"):
            addresses = self.registers[target.strip("[]")]
            self.stored |= dict(zip(addresses, self._value(operands[0]), strict=True))
        else:
            columns = zip(*map(self._value, operands), strict=True)
            self.registers[target] = [OPERATIONS[opcode](*column) for column in columns]
        return None

    def _multiply(self, target: str, left: str, right: str, addend: str) -> None:
        """D = A x B + C with the layouts of `truth`, which the simulated CUDA has a second time."""
        names = [each.split(", ") for each in (target, left, right, addend)]
        a = self._tile(names[1], truth._a(self._variant))
        b = self._tile(names[2], truth._b(self._variant))
        for n, (out, old) in enumerate(zip(names[0], names[3], strict=True)):
            sums = []
            for lane, elements in enumerate(truth._c(self._variant)):
                row, column = elements[n]
                products = [a[row, k] * b[k, column] for k in range(self._variant.k)]
                sums.append(as_bits(sum(products, as_float(self.registers[old][lane]))))
            self.registers[out] = sums

    def _tile(self, names: list[str], fragment: truth.Fragment) -> dict[truth.Element, float]:
        return {
            element: value
            for lane in range(WARP)
            for name, elements in zip(names, fragment[lane], strict=True)
            for element, value in zip(elements, halves(self.registers[name][lane]), strict=True)
        }


OPERATIONS: dict[str, Callable[..., int]] = {
    "cvta.to.global.u64": lambda x: x,
    "mov.u32": lambda x: x,
    "mov.f32": lambda x: x,
    "mov.b32": lambda x: x,
    "and.b32": lambda x, y: x & y,
    "xor.b32": lambda x, y: x ^ y,
    "neg.f32": lambda x: x ^ 0x80000000,
    "mul.wide.u32": lambda x, y: x * y,
    "add.u64": lambda x, y: x + y,
    "sub.u32": lambda x, y: (x - y) & MASK,
    "mad.lo.u32": lambda x, y, z: (x * y + z) & MASK,
    "setp.ne.u32": lambda x, y: int(x != y),
    "fma.rn.f32": lambda x, y, z: as_bits(as_float(x) * as_float(y) + as_float(z)),
}


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_the_text_computes_what_the_cpu_expects(variant: Variant) -> None:
    """Three loops: forth, back and forth; every thread stores its own result where its number says."""
    warp = Warp(variant, loops=3, block=5)
    warp.run(ptx._burn(variant))
    results = [warp.stored[RESULTS + 4 * (5 * THREADS + lane)] for lane in range(WARP)]
    assert results == truth.expected(variant, loops=3)
    assert len(warp.stored) == WARP
