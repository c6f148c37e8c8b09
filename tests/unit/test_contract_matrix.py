"""The matrix in the style of each driver release, from documents made for the test.

That real recordings come out of real probe runs is shown in tests/probes.
"""

from __future__ import annotations

import pytest

from nodegauge_contract import Gpu, LinkGroup, Nics, Pairs, Result, System, Unavailable, render_matrix
from nodegauge_contract.matrix import Style, style

NO = Unavailable("NVML_ERROR_NOT_SUPPORTED")


def gpu(index: int, *, peer: str = "", links: int = 0) -> Gpu:
    groups = (
        [LinkGroup(links=list(range(links)), state=1, p2p=1, remote=peer, remote_type=0)] if links else []
    )
    return Gpu(
        index=index, pci=f"0000:0{index}:00.0", cpus="0-23", memory_nodes=NO, gpu_numa_id=NO, links=groups
    )


def pair(
    driver: str, *, links: int = 0, ancestor: int | Unavailable = 30, nics: Nics | None = None
) -> Result:
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
    text = render_matrix(pair("535.129.03", nics=nics))
    assert cells(text) == [
        ["GPU0", "GPU1", "NIC0", "NIC1", "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"],
        ["GPU0", "X", "PHB", "PIX", "NODE", "0-23", "N/A", "N/A"],
        ["GPU1", "PHB", "X", "SYS", "N/A", "0-23", "N/A", "N/A"],
        ["NIC0", "PIX", "SYS", "X", "PHB"],
        ["NIC1", "NODE", "N/A", "PHB", "X"],
    ]
    assert text.endswith("NIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_bond_0")
    assert "mlx5_bond_0" in cells(render_matrix(pair("450.80", nics=nics)))[0]


@pytest.mark.parametrize(
    ("level", "letters"),
    [(0, "PIX"), (10, "PIX"), (20, "PXB"), (30, "PHB"), (40, "NODE"), (50, "SYS"), (99, "N/A"), (NO, "N/A")],
)
def test_ancestors_have_the_letters_of_the_tool(level: int | Unavailable, letters: str) -> None:
    assert cells(render_matrix(pair("470.82", ancestor=level)))[1][2] == letters


def test_a_document_that_ended_early_still_prints() -> None:
    bare = Result(probe="health", gpus=[Gpu(index=0), Gpu(index=3)], nics=Nics(names=["mlx5_0"]))
    assert cells(render_matrix(bare))[2] == ["GPU3", "N/A", "X", "N/A", "N/A", "N/A", "N/A"]
    assert render_matrix(Result(probe="health")) == ""


def test_columns_line_up_and_carry_no_tabs() -> None:
    """Every row is cut to the same columns, without trailing blanks, so that YAML shows it as a block."""
    text = render_matrix(pair("535.129.03", links=18))
    head, *rows = text.split("\n\n")[0].splitlines()
    assert "\t" not in text
    assert all(line == line.rstrip() for line in text.splitlines())
    assert all(row[head.index("CPU") :].startswith("0-23") for row in rows)
