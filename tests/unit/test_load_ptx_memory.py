"""The text of the kernels `fill` and `stream`, executed thread by thread on a small memory.

A wrong pattern here would accuse healthy memory.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nodegauge_probes.load import ptx

MASK, LONG = 2**32 - 1, 2**64 - 1
BUFFER, COUNTER = 1 << 33, 1 << 40
BLOCKS, SIZE = 2, 3
VECTORS = BLOCKS * SIZE * ptx.UNROLL * 2
Memory = dict[int, int]

OPERATIONS: dict[str, Callable[..., int]] = {
    "cvta.to.global.u64": lambda x: x,
    "cvt.u64.u32": lambda x: x,
    "cvt.u32.u64": lambda x: x & MASK,
    "mov.u32": lambda x: x,
    "mov.u64": lambda x: x,
    "add.u32": lambda x, y: (x + y) & MASK,
    "sub.u32": lambda x, y: (x - y) & MASK,
    "mul.lo.u32": lambda x, y: (x * y) & MASK,
    "mad.lo.u32": lambda x, y, z: (x * y + z) & MASK,
    "xor.b32": lambda x, y: x ^ y,
    "or.b32": lambda x, y: x | y,
    "add.u64": lambda x, y: (x + y) & LONG,
    "mad.lo.u64": lambda x, y, z: (x * y + z) & LONG,
    "shl.b64": lambda x, y: (x << y) & LONG,
    "setp.ge.u64": lambda x, y: int(x >= y),
    "setp.eq.u64": lambda x, y: int(x == y),
    "setp.ne.u32": lambda x, y: int(x != y),
}


def run(text: str, memory: Memory, *, block: int, thread: int, **parameters: int) -> None:
    """One thread of the kernel, to its end."""
    lines = [line.strip().rstrip(";") for line in text.splitlines()]
    body = [line for line in lines[lines.index("{") + 1 : lines.index("}")] if line and line[0] != "."]
    registers = {"%ctaid.x": block, "%ntid.x": SIZE, "%tid.x": thread, "%nctaid.x": BLOCKS}
    at = 0
    while body[at] != "ret":
        line, at = body[at], at + 1
        if line.endswith(":"):
            continue
        if line.startswith("@"):
            guard, _, line = line.partition(" ")
            if not registers[guard[1:]]:
                continue
        opcode, _, rest = line.partition(" ")
        if opcode == "bra":
            at = body.index(f"{rest}:")
        else:
            execute(opcode, rest, registers, memory, parameters)


def execute(
    opcode: str, rest: str, registers: dict[str, int], memory: Memory, parameters: dict[str, int]
) -> None:
    names = [part.strip("[]{} ") for part in rest.split(",")]
    if opcode == "ld.param.u64" or opcode == "ld.param.u32":
        registers[names[0]] = parameters[names[1]]
    elif opcode == "ld.global.v4.u32":
        for n, name in enumerate(names[:4]):
            registers[name] = memory[registers[names[4]] + 4 * n]
    elif opcode == "st.global.v4.u32":
        for n, name in enumerate(names[1:]):
            memory[registers[names[0]] + 4 * n] = registers[name]
    elif opcode == "atom.global.add.u64":
        memory[registers[names[1]]] = memory.get(registers[names[1]], 0) + registers[names[2]]
    else:
        values = [registers[name] if name[0] == "%" else int(name, 0) for name in names[1:]]
        registers[names[0]] = OPERATIONS[opcode](*values)


def everywhere(text: str, memory: Memory, **parameters: int) -> None:
    for block in range(BLOCKS):
        for thread in range(SIZE):
            run(text, memory, block=block, thread=thread, **parameters)


@pytest.fixture
def filled() -> Memory:
    memory: Memory = {}
    everywhere(ptx._FILL, memory, p_buffer=BUFFER, p_vectors=VECTORS)
    return memory


def wrong(memory: Memory, *, rounds: int = 2) -> int:
    everywhere(ptx._STREAM, memory, p_buffer=BUFFER, p_vectors=VECTORS, p_rounds=rounds, p_wrong=COUNTER)
    return memory.get(COUNTER, 0)


def test_every_word_gets_its_own_pattern(filled: Memory) -> None:
    """All of the buffer and nothing beside it."""
    pattern = {BUFFER + 4 * n: n * ptx.PATTERN % 2**32 for n in range(4 * VECTORS)}
    assert filled == pattern


def test_memory_as_it_was_written_is_right(filled: Memory) -> None:
    """In every round, for every thread."""
    assert wrong(filled) == 0


@pytest.mark.parametrize("word", [0, 1, 2, 3, 4 * VECTORS - 1, 2 * VECTORS + 1])
@pytest.mark.parametrize("bit", [0, 31])
def test_one_wrong_bit_counts_once_a_round(filled: Memory, word: int, bit: int) -> None:
    """Wherever it is: the first vector, the last one, each of the four words."""
    filled[BUFFER + 4 * word] ^= 1 << bit
    assert wrong(filled, rounds=3) == 3
