"""The kernels of the load probe, as PTX that the driver compiles: no toolkit and no CUDA library is needed.

The text is made here, from the instruction set's documentation (PTX ISA 8.x, "mma" and its fragment layouts),
not by a compiler: what you read is all that runs.  `tests/unit/test_load_ptx.py` assembles it with `ptxas`
where that is installed.  Each variant names the oldest GPU and the oldest PTX version that have its
instruction, so that old drivers take it and new GPUs compile it, too.

`burn(table, results, loops)`: every warp does the same work.  A thread loads its parts of `A_TILES` and
`B_TILES` matrices from `table` (one word per thread of a warp and register), and in every loop it adds to
each accumulator `acc[j] += sum over i and r of A[i] x B[j + r]`, in registers alone; then it folds the bits
of all accumulators into a number: `h = h * MULTIPLIER + bits`, which loses nothing (an odd factor can be
undone).  A changes its sign after every loop, so every second loop returns the sums to zero: they stay exact,
a wrong bit stays in them, and no compiler can take the products out of the loop.  The integers in the
matrices are so small that every sum is exact, whatever the order of its additions: `truth` computes the same.

`fill(buffer, vectors)` and `stream(buffer, vectors, rounds, wrong)`: write a pattern, and read it again and
again, comparing every word: they load the memory, and count the vectors that it returns differently.
"""

from __future__ import annotations

from msgspec import Struct

A_TILES, B_TILES, SHIFTS = 4, 8, 4
"""Matrices in registers, and how many B each A meets per accumulator."""
THREADS, WARP = 256, 32
BLOCKS_PER_SM = 2
MULTIPLIER = 1664525
"""Numerical Recipes' factor; any odd number does."""
PATTERN = 2654435761
"""Knuth's: neighbouring words differ in half of their bits."""
UNROLL = 4


class Variant(Struct, frozen=True, kw_only=True):
    """One instruction."""

    name: str
    """Type of its inputs and its shape, or `f32-fma`."""
    since: tuple[int, int]
    """The first compute capability that has it."""
    target: str
    """PTX target of that capability."""
    version: str
    """The oldest PTX version that has it."""
    m: int
    """Rows of A and of the sum."""
    n: int
    """Columns of B and of the sum."""
    k: int
    """Columns of A, rows of B."""
    a: int
    """Registers of one thread for a matrix A."""
    b: int
    """Registers of one thread for a matrix B."""
    c: int
    """Registers of one thread for a sum."""

    @property
    def operations(self) -> int:
        """Floating-point operations of one warp in one loop; an addition and a multiplication are two."""
        return 2 * self.m * self.n * self.k * A_TILES * B_TILES * SHIFTS


VARIANTS = (
    Variant(
        name="f16-m16n8k16",
        since=(8, 0),
        target="sm_80",
        version="7.0",
        m=16,
        n=8,
        k=16,
        a=4,
        b=2,
        c=4,
    ),
    Variant(name="f16-m16n8k8", since=(7, 5), target="sm_75", version="6.5", m=16, n=8, k=8, a=2, b=1, c=4),
    Variant(
        # Four 8x8x4 products per instruction, one in each pair of quads: counted as one of 32 rows.
        name="f16-m8n8k4",
        since=(7, 0),
        target="sm_70",
        version="6.4",
        m=32,
        n=8,
        k=4,
        a=2,
        b=2,
        c=8,
    ),
    Variant(
        # No tensor cores: each thread multiplies numbers of its own, so a warp has 32 products.
        name="f32-fma",
        since=(5, 0),
        target="sm_50",
        version="5.0",
        m=32,
        n=1,
        k=1,
        a=1,
        b=1,
        c=1,
    ),
)


def variant_for(capability: tuple[int, int]) -> Variant | None:
    """The newest instruction that a GPU of this compute capability has; None before Maxwell."""
    return next((each for each in VARIANTS if capability >= each.since), None)


def source(variant: Variant) -> str:
    """The module of all kernels, for this variant."""
    head = f".version {variant.version}\n.target {variant.target}\n.address_size 64\n"
    return "\n".join((head, _burn(variant), _FILL, _STREAM))


def _multiply(variant: Variant, i: int, j: int, other: int) -> str:
    """acc[j] += A[i] x B[other]."""
    acc = _list(f"c{j}_", variant.c)
    if variant.name == "f32-fma":
        return f"    fma.rn.f32 %c{j}_0, %a{i}_0, %b{other}_0, %c{j}_0;"
    shape = variant.name.removeprefix("f16-")
    a, b = _list(f"a{i}_", variant.a), _list(f"b{other}_", variant.b)
    return f"    mma.sync.aligned.{shape}.row.col.f32.f16.f16.f32 {acc}, {a}, {b}, {acc};"


def _list(prefix: str, count: int) -> str:
    return "{" + ", ".join(f"%{prefix}{n}" for n in range(count)) + "}"


def _burn(variant: Variant) -> str:
    kind = ".f32" if variant.name == "f32-fma" else ".b32"
    tiles = [f"a{i}_{n}" for i in range(A_TILES) for n in range(variant.a)]
    tiles += [f"b{j}_{n}" for j in range(B_TILES) for n in range(variant.b)]
    sums = [f"c{j}_{n}" for j in range(B_TILES) for n in range(variant.c)]
    loads = [f"    ld.global{kind} %{name}, [%table + {n * WARP * 4}];" for n, name in enumerate(tiles)]
    zeros = [f"    mov.f32 %{name}, 0f00000000;" for name in sums]
    products = [
        _multiply(variant, i, j, (j + r) % B_TILES)
        for i in range(A_TILES)
        for r in range(SHIFTS)
        for j in range(B_TILES)
    ]
    negate = "neg.f32 %{0}, %{0}" if variant.c == 1 else "xor.b32 %{0}, %{0}, 0x80008000"
    signs = [f"    {negate.format(name)};" for name in tiles if name.startswith("a")]
    folds = [
        line
        for name in sums
        for line in (
            f"    mov.b32 %bits, %{name};",
            f"    mad.lo.u32 %h, %h, {MULTIPLIER}, %bits;",
        )
    ]
    return "\n".join(
        (
            f".visible .entry burn(.param .u64 p_table, .param .u64 p_results, .param .u32 p_loops)"
            f"\n.maxntid {THREADS}, 1, 1\n{{",
            "    .reg .pred %p;",
            "    .reg .u64 %table, %results, %offset;",
            "    .reg .u32 %loops, %lane, %thread, %block, %h, %bits;",
            f"    .reg {kind} {', '.join('%' + name for name in tiles)};",
            f"    .reg .f32 {', '.join('%' + name for name in sums)};",
            "    ld.param.u64 %table, [p_table];",
            "    ld.param.u64 %results, [p_results];",
            "    ld.param.u32 %loops, [p_loops];",
            "    cvta.to.global.u64 %table, %table;",
            "    cvta.to.global.u64 %results, %results;",
            "    mov.u32 %thread, %tid.x;",
            f"    and.b32 %lane, %thread, {WARP - 1};",
            "    mul.wide.u32 %offset, %lane, 4;",
            "    add.u64 %table, %table, %offset;",
            *loads,
            "    mov.u32 %h, %lane;",
            *zeros,
            "LOOP:",
            *products,
            *folds,
            *signs,
            "    sub.u32 %loops, %loops, 1;",
            "    setp.ne.u32 %p, %loops, 0;",
            "    @%p bra LOOP;",
            "    mov.u32 %block, %ctaid.x;",
            f"    mad.lo.u32 %block, %block, {THREADS}, %thread;",
            "    mul.wide.u32 %offset, %block, 4;",
            "    add.u64 %results, %results, %offset;",
            "    st.global.u32 [%results], %h;",
            "    ret;",
            "}\n",
        )
    )


_GRID = """
    mov.u32 %block, %ctaid.x;
    mov.u32 %size, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.u32 %thread, %block, %size, %thread;
    mov.u32 %block, %nctaid.x;
    mul.lo.u32 %size, %block, %size;
    cvt.u64.u32 %first, %thread;
    cvt.u64.u32 %stride, %size;"""
"""This thread's first vector, and the distance to its next one."""

_FILL = f"""
.visible .entry fill(.param .u64 p_buffer, .param .u64 p_vectors)
{{
    .reg .pred %p;
    .reg .u64 %buffer, %vectors, %first, %stride, %at;
    .reg .u32 %block, %size, %thread, %w0, %w1, %w2, %w3;
    ld.param.u64 %buffer, [p_buffer];
    ld.param.u64 %vectors, [p_vectors];
    cvta.to.global.u64 %buffer, %buffer;{_GRID}
NEXT:
    setp.ge.u64 %p, %first, %vectors;
    @%p bra END;
    cvt.u32.u64 %w0, %first;
    mul.lo.u32 %w0, %w0, {4 * PATTERN % 2**32};
    add.u32 %w1, %w0, {PATTERN};
    add.u32 %w2, %w1, {PATTERN};
    add.u32 %w3, %w2, {PATTERN};
    shl.b64 %at, %first, 4;
    add.u64 %at, %buffer, %at;
    st.global.v4.u32 [%at], {{%w0, %w1, %w2, %w3}};
    add.u64 %first, %first, %stride;
    bra NEXT;
END:
    ret;
}}
"""


def _read(number: int) -> str:
    return f"    ld.global.v4.u32 {{%x{number}, %y{number}, %z{number}, %v{number}}}, [%at{number}];"


def _compare(number: int) -> str:
    """One vector against its pattern; `index` is its number, which grows by the stride."""
    return f"""
    mul.lo.u32 %want, %index, {4 * PATTERN % 2**32};
    add.u32 %index, %index, %size;
    xor.b32 %bad, %x{number}, %want;
    add.u32 %want, %want, {PATTERN};
    xor.b32 %y{number}, %y{number}, %want;
    or.b32 %bad, %bad, %y{number};
    add.u32 %want, %want, {PATTERN};
    xor.b32 %z{number}, %z{number}, %want;
    or.b32 %bad, %bad, %z{number};
    add.u32 %want, %want, {PATTERN};
    xor.b32 %v{number}, %v{number}, %want;
    or.b32 %bad, %bad, %v{number};
    setp.ne.u32 %q, %bad, 0;
    @%q add.u64 %wrong, %wrong, 1;"""


_PARTS = range(UNROLL)
_REGISTERS = ", ".join(f"%{letter}{n}" for n in _PARTS for letter in "xyzv")
_ADDRESSES = ", ".join(f"%at{n}" for n in _PARTS)
_STEPS = "\n".join(f"    add.u64 %at{n}, %at{n - 1}, %step;" for n in _PARTS[1:])
_STREAM = f"""
.visible .entry stream(.param .u64 p_buffer, .param .u64 p_vectors, .param .u32 p_rounds, .param .u64 p_wrong)
{{
    .reg .pred %p, %q;
    .reg .u64 %buffer, %vectors, %first, %stride, %step, %now, %wrong, %counter, {_ADDRESSES};
    .reg .u32 %block, %size, %thread, %rounds, %index, %want, %bad, {_REGISTERS};
    ld.param.u64 %buffer, [p_buffer];
    ld.param.u64 %vectors, [p_vectors];
    ld.param.u32 %rounds, [p_rounds];
    ld.param.u64 %counter, [p_wrong];
    cvta.to.global.u64 %buffer, %buffer;
    cvta.to.global.u64 %counter, %counter;{_GRID}
    shl.b64 %step, %stride, 4;
    mov.u64 %wrong, 0;
ROUND:
    mov.u64 %now, %first;
NEXT:
    setp.ge.u64 %p, %now, %vectors;
    @%p bra DONE;
    cvt.u32.u64 %index, %now;
    shl.b64 %at0, %now, 4;
    add.u64 %at0, %buffer, %at0;
{_STEPS}
{chr(10).join(_read(n) for n in _PARTS)}
{"".join(_compare(n) for n in _PARTS)}
    mad.lo.u64 %now, %stride, {UNROLL}, %now;
    bra NEXT;
DONE:
    sub.u32 %rounds, %rounds, 1;
    setp.ne.u32 %p, %rounds, 0;
    @%p bra ROUND;
    setp.eq.u64 %p, %wrong, 0;
    @%p bra END;
    atom.global.add.u64 %now, [%counter], %wrong;
END:
    ret;
}}
"""
