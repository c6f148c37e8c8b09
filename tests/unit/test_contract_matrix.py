"""The matrix in the style of each driver release; real runs are compared in tests/probes."""

from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import (
    Gpu,
    LinkGroup,
    Nics,
    Pairs,
    Problem,
    ProblemKind,
    Result,
    System,
    Unavailable,
    render_matrix,
)
from nodegauge_contract.matrix import Style, style
from nodegauge_contract.nvlink import Doubt, lanes
from support.judge_results import Row, Table, rows

NO = Unavailable("NVML_ERROR_NOT_SUPPORTED")


def gpu(index: int, *, peer: str = "", links: int = 0) -> Gpu:
    groups = [LinkGroup(links=[*range(links)], state=1, p2p=1, remote=peer, remote_type=0)] if links else []
    return Gpu(
        index=index, pci=f"0000:0{index}:00.0", cpus="0-23", memory_nodes=NO, gpu_numa_id=NO, links=groups
    )


def two(driver: str, *, links: int = 0, ancestor: int | Unavailable = 30, nics: Nics | None = None) -> Result:
    return Result(
        probe="health",
        system=System(driver=driver),
        gpus=[gpu(0, peer="0000:01:00.0", links=links), gpu(1, peer="0000:00:00.0", links=links)],
        pairs=Pairs(ancestor=[[-1, ancestor], [ancestor, -1]]),
        nics=nics or Nics(),
    )


def cells(text: str) -> list[list[str]]:
    table = text.split("\n\nLegend:")[0]
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in table.splitlines()]


@pytest.mark.parametrize(
    ("driver", "look"),
    [
        ("396.26", Style.CPU_ONLY),
        ("440.33.01", Style.CPU_ONLY),
        ("450.51", Style.NUMA),
        ("510.47.03", Style.NUMA),
        ("525.105.17", Style.NUMBERED_NICS),
        ("535.129.03", Style.GPU_NUMA),
        ("595.84", Style.GPU_NUMA),
        ("", Style.GPU_NUMA),
        (NO, Style.GPU_NUMA),
    ],
)
def test_the_style_follows_the_driver(driver: str, look: Style) -> None:
    assert style(driver) is look


def test_newer_styles_number_the_network_cards_and_name_them_below() -> None:
    nics = Nics(
        names=["mlx5_0", "mlx5_bond_0"],
        pci=["0000:02:00.0", "0000:03:00.0"],
        to_gpu=[["PIX", "SYS"], ["NODE", NO]],
        to_nic=[["X", "PHB"], ["PHB", "X"]],
    )
    text = render_matrix(two("535.129.03", nics=nics))
    assert cells(text) == [
        ["GPU0", "GPU1", "NIC0", "NIC1", "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"],
        ["GPU0", "X", "PHB", "PIX", "NODE", "0-23", "N/A", "N/A"],
        ["GPU1", "PHB", "X", "SYS", "N/A", "0-23", "N/A", "N/A"],
        ["NIC0", "PIX", "SYS", "X", "PHB"],
        ["NIC1", "NODE", "N/A", "PHB", "X"],
    ]
    assert text.endswith("NIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_bond_0")
    assert "mlx5_bond_0" in cells(render_matrix(two("450.80", nics=nics)))[0]


@pytest.mark.parametrize(
    ("level", "letters"),
    [(0, "PIX"), (10, "PIX"), (20, "PXB"), (30, "PHB"), (40, "NODE"), (50, "SYS"), (99, "N/A"), (NO, "N/A")],
)
def test_ancestors_have_the_letters_of_the_tool(level: int | Unavailable, letters: str) -> None:
    assert cells(render_matrix(two("470.82", ancestor=level)))[1][2] == letters


def test_a_document_that_ended_early_still_prints() -> None:
    bare = Result(probe="health", gpus=[Gpu(index=0), Gpu(index=3)], nics=Nics(names=["mlx5_0"]))
    assert cells(render_matrix(bare))[2] == ["GPU3", "N/A", "X", "N/A", "N/A", "N/A", "N/A"]
    assert render_matrix(Result(probe="health")) == ""


def test_columns_line_up_and_carry_no_tabs() -> None:
    """Every row is cut to the same columns, without trailing blanks, so that YAML shows it as a block."""
    text = render_matrix(two("535.129.03", links=18))
    head, *rows = text.split("\n\n")[0].splitlines()
    assert "\t" not in text
    assert all(line == line.rstrip() for line in text.splitlines())
    assert all(row[head.index("CPU") :].startswith("0-23") for row in rows)


REMOTE, HIDDEN = Doubt.REMOTE, Doubt.HIDDEN
STATELESS = ((9, Doubt.STATE), (Unavailable("Unknown"), Doubt.STATE))
NV2 = {"pair": ((0, 2), (2, 0))}
BOTH = tuple(tuple(18 * (i != j) for j in range(4)) for i in range(4))
UNKNOWN = Unavailable("Unknown")


def doubts(result: Result) -> list[tuple[int, Doubt]]:
    return [(doubt.gpu, doubt.doubt) for doubt in lanes(result).unresolved]


def titan(*groups: LinkGroup, **changes: Any) -> Result:
    return made.with_gpu(made.titan(), 0, **({"links": list(groups)} if groups else {}), **changes)


def first_of_dgx1(count: int) -> Result:
    pairs = made.pairs([[i != j for j in range(count)] for i in range(count)])
    return replace(made.dgx1(), gpus=made.dgx1().gpus[:count], pairs=pairs)


LINK, SWITCH = made.titan().gpus[0].links[0], made.h100(2).gpus[0].links[0]
SHORT = made.without_links(made.h100(4), 2, count=3)
NAMELESS = made.every_link(made.h100(4), remote=Unavailable("NotSupported"), remote_type=255)
HALF_NAMED = [replace(LINK, links=[0], remote=made.pci(1)), replace(LINK, links=[1], remote=UNKNOWN)]
OTHER_HALF = [replace(HALF_NAMED[0], remote=made.pci(0)), HALF_NAMED[1]]
AGAIN = [SWITCH, SWITCH, replace(SWITCH, links=[0, 0, 1, 18])]
SLOWER = (replace(LINK, links=[0]), replace(LINK, links=[1], mbps=20_000))
UPPER = made.with_gpu(made.titan(), 1, pci="0000:1A:00.0")
NEVER = LinkGroup(links=[0], state=Unavailable("NVML_ERROR_FUNCTION_NOT_FOUND"))
TABLE: Table = {
    # what: the document, some of its lanes, and the doubts by GPU (or of which kinds they are)
    "a recorded mesh is counted pair by pair": [
        (made.dgx1(), {"pair": made.DGX1_NV, "sums": (6,) * 8, "switched": False, "rates": (25_781,) * 8}, [])
    ],
    "behind switches a pair has the smaller number of switch links, and its sum is its own": (
        SHORT,
        {
            "switched": True,
            "sums": (18, 18, 15, 18),
            "pair": ((0, 18, 15, 18), (18, 0, 15, 18), (15, 15, 0, 15), (18, 18, 15, 0)),
        },
        [],
    ),
    "field 147 tells of a switch where the driver hides the far end": [
        (NAMELESS, {"pair": BOTH}, []),
        (made.every_gpu(NAMELESS, switch_links=0), {"sums": (0,) * 4}, {REMOTE}),
    ],
    "the type of the far end is enough where field 147 does not exist (drivers before r460)": [
        (made.every_gpu(made.h100(4), switch_links=Unavailable("FunctionNotFound")), {"pair": BOTH}, [])
    ],
    "a link that names its own GPU leads to the only peer with NVLink P2P (NCv4)": [
        (made.ncv4(), {"pair": lanes(made.a100_bridged_pairs()).pair}, [])
    ],
    "an unnamed far end is resolved likewise": [
        (made.every_link(made.titan(), remote=remote), NV2, [])
        for remote in ("", Unavailable("Uninitialized"))
    ],
    "also beside a named one": [
        (made.with_gpu(titan(*HALF_NAMED), 1, links=OTHER_HALF), {"sums": (2, 2)}, [])
    ],
    "a virtual machine shows its host's addresses: nobody is called hidden": [
        (made.every_link(made.titan(), remote="000a:00:00.0"), NV2, [])
    ],
    "a link to a GPU that was not shown is given to nobody, although P2P is OK with one peer": [
        (first_of_dgx1(2), {"pair": ((0, 1), (1, 0))}, {HIDDEN})
    ],
    "one GPU alone whose links name another one tells of a hidden one": [(first_of_dgx1(1), {}, {HIDDEN})],
    "a strange name may be the GPU whose address could not be read": [
        (made.with_gpu(made.dgx1(), 3, pci=Unavailable("GpuIsLost")), {}, {REMOTE})
    ],
    "inactive and absent links are zero": [
        (made.every_link(made.titan(), state=state), {"sums": (0, 0)}, [])
        for state in (0, *map(Unavailable, ("NVMLError_NotSupported: Not Supported", "Invalid Argument")))
    ],
    "asleep, disabled and unreadable links are a doubt, not a zero": [
        (made.every_link(made.titan(), state=state), {"sums": (0, 0)}, {doubt})
        for state, doubt in ((2, Doubt.ASLEEP), (3, Doubt.TRAFFIC_DISABLED), *STATELESS)
    ],
    "P2P_SUPPORTED false is an answer, not readable is a doubt (NCCL skips the one and the other)": [
        (made.with_links(made.titan(), 0, p2p=0), {"pair": ((0, 0), (0, 0))}, []),
        (made.with_links(made.titan(), 0, p2p=UNKNOWN), {}, [(0, Doubt.CAPABILITY)]),
    ],
    "one end down is a link down, for the pair and for both sums": [
        (made.without_links(made.titan(), 0, count=1), {"pair": ((0, 1), (1, 0)), "sums": (1, 1)}, [])
    ],
    "what a healthy GPU reports stands where the other end is lost": [
        (made.with_gpu(made.titan(), 1, error=Problem(kind=ProblemKind.GPU_LOST), links=[]), NV2, [])
    ],
    "links to a CPU (POWER9) neither count nor raise a doubt": (
        made.with_links(made.titan(), 0, remote="0004:04:00.0", remote_type=1),
        {"sums": (0, 0), "rates": (None, 25_781)},
        [],
    ),
    "a GPU that counts switch links while none is active contradicts itself": [
        (made.with_links(made.h100(4), 1, state=0), {}, [(1, Doubt.SILENT)])
    ],
    "nothing is silent on a plain PCIe card": [
        (made.with_gpu(made.phb(), 0, switch_links=0), {"rates": (None, None)}, [])
    ],
    "with MIG on, NVML reports links as down whatever they are": [
        (made.with_gpu(made.h100(4), 1, mig=1), {"mig": (1,), "sums": (18, 0, 18, 18)}, [])
    ],
    "a link that is listed twice counts once": [
        (made.with_gpu(made.h100(2), 0, links=AGAIN), {"sums": (19, 18)}, [])
    ],
    "the slowest counted link gives the rate": [
        (titan(*SLOWER, LinkGroup(links=[2], state=0, p2p=1, mbps=1)), {"rates": (20_000, 25_781)}, []),
        (made.with_links(made.titan(), 0, mbps=0), {"rates": (None, 25_781)}, []),
    ],
    "NVML prints bus ids in upper case, sysfs in lower": [
        (made.with_links(made.titan(), 0, remote="0000:10:00.0".upper()), NV2, []),
        (made.with_links(UPPER, 0, remote="0000:1a:00.0"), NV2, []),
    ],
    "a driver that knows no NVLink calls is no riddle on a GPU that never had any": [
        (made.with_gpu(made.phb(), 0, compute_capability=capability, links=[NEVER]), {}, expected)
        for capability, expected in (("3.7", []), ("5.2", []), ("6.0", {Doubt.STATE}))
    ],
    "an empty document has no lanes": [(Result(probe="health"), {"pair": ()}, [])],
}


@pytest.mark.parametrize("row", rows(TABLE))
def test_links_are_counted(row: Row) -> None:
    """A link counts only if it is active, carries peer traffic, and is known to lead to that peer."""
    result, counted, expected = row
    seen = lanes(result)
    assert {name: getattr(seen, name) for name in counted} == counted
    listed = doubts(result)
    assert ({doubt for _, doubt in listed} if isinstance(expected, set) else listed) == expected


def test_every_link_to_a_hidden_gpu_is_in_doubt() -> None:
    """Ten of the twelve of two GPUs of a DGX-1."""
    assert sum(len(doubt.links) for doubt in lanes(first_of_dgx1(2)).unresolved) == 10
