"""The matrix that comes out of a real probe run, beside what nvidia-smi printed on the real machine.

The real program, the real pynvml and the simulated driver library.  A profile joins by naming its recording.
Where a matrix is published but not kept here, its facts are restated as rows.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from nodegauge_contract import Result, render_matrix
from support.probing import Healthy, table_cells
from testbed import profiles

FIXTURES = Path(__file__).parent.parent / "fixtures"
MODELLED = {name: recording for name in profiles.names() if (recording := profiles.load(name).recording)}
OF_NO_MACHINE = {"topo-m_h100x8_wrapped-header_nvsentinel.txt"}
"""Made to break parsers: tests/unit/test_contract_matrix.py has the look from it."""

PUBLISHED = {
    "dgx2-v100-16": {  # NVIDIA/nccl-tests issue 78
        "GPU0": "X 15*NV6 PIX PXB 2*NODE 6*SYS",
        "GPU2": "2*NV6 X 13*NV6 PXB PIX 2*NODE 6*SYS",
        "GPU4": "4*NV6 X 11*NV6 2*NODE PIX PXB 6*SYS",
    },
    "h800-sxm-8": {  # NVIDIA/nccl issue 933
        "GPU0": "X 7*NV8 NODE SYS PIX SYS NODE SYS NODE SYS NODE",
        "GPU3": "3*NV8 X 4*NV8 NODE SYS NODE SYS NODE SYS NODE SYS PIX",
        "GPU5": "5*NV8 X 2*NV8 SYS NODE SYS PIX SYS NODE SYS NODE SYS",
    },
    "hgx-a100-4": {  # NVIDIA/nccl-tests issue 331
        "GPU0": "X 3*NV4 PXB 3*SYS",
        "NIC2": "2*SYS PXB 3*SYS X SYS",
    },
    "gb200-4": {  # sgl-project/sglang issue 11208, NVIDIA/k8s-test-infra issue 371
        "GPU0": "X 3*NV18 6*SYS",
        "GPU3": "3*NV18 X 6*SYS",
    },
    "a100-pcie-4-pairs": {  # made up: what bridges on pairs must come to
        "GPU0": "X NV12 2*SYS PHB SYS",
        "GPU3": "2*SYS NV12 X SYS NODE",
    },
    "ncv4-a100-pcie": {  # the same, in a virtual machine whose links name themselves
        "GPU0": "X NV12 2*SYS",
        "GPU3": "2*SYS NV12 X",
    },
}
CPU, NUMA, GPU_NUMA = "CPU_Affinity", "NUMA_Affinity", "GPU_NUMA_ID"
HEADERS = {
    "dgx2-v100-16": [*(f"GPU{n}" for n in range(16)), *(f"mlx5_{n}" for n in range(10)), CPU, NUMA],
    "hgx-a100-4": [*(f"GPU{n}" for n in range(4)), *(f"NIC{n}" for n in range(4)), CPU, NUMA],
    "h800-sxm-8": [*(f"GPU{n}" for n in range(8)), *(f"NIC{n}" for n in range(9)), CPU, NUMA, GPU_NUMA],
    "gb200-4": [*(f"GPU{n}" for n in range(4)), *(f"NIC{n}" for n in range(6)), CPU, NUMA, GPU_NUMA],
    "a100-pcie-4-pairs": [*(f"GPU{n}" for n in range(4)), "mlx5_0", "mlx5_1", CPU, NUMA],
    "ncv4-a100-pcie": [*(f"GPU{n}" for n in range(4)), CPU, NUMA, GPU_NUMA],
}
"""Columns of the driver releases of these profiles, as published matrices of that time have them."""


def cells(row: str) -> list[str]:
    """A row with its repetitions spelt out: "X 2*NV4" is X, NV4, NV4."""
    counted = [cell.rpartition("*") for cell in row.split()]
    return [name for count, _, name in counted for _ in range(int(count or 1))]


def drawn_as(result: Result, driver: str) -> Result:
    """The same document as if that driver release had drawn it."""
    return replace(result, system=replace(result.system, driver=driver)) if driver else result


@pytest.mark.parametrize("name", MODELLED)
def test_the_matrix_equals_the_recorded_one(healthy: Healthy, name: str) -> None:
    """Up to spacing: header, names, order, every cell, affinities and legend."""
    recorded = (FIXTURES / MODELLED[name].file).read_text()
    result = healthy(name)
    matrix = render_matrix(drawn_as(result, MODELLED[name].drawn_as))
    assert table_cells(matrix)[: len(table_cells(recorded))] == table_cells(recorded)
    whole = not MODELLED[name].drawn_as  # who draws a table anew may leave out the rows of network cards
    assert len(table_cells(recorded)) == 1 + len(result.gpus) + len(result.nics.names) * whole
    if "Legend" in recorded:
        assert matrix.split("\n\n", 1)[1].split() == recorded.strip("\n").split("\n\n", 1)[1].split()


def test_every_recorded_matrix_is_of_some_profile() -> None:
    """A recording that no profile names would be compared with nothing."""
    kept = {path.name for path in FIXTURES.glob("topo-m_*")}
    assert {recording.file for recording in MODELLED.values()} == kept - OF_NO_MACHINE
    assert len(MODELLED) >= 4


@pytest.mark.parametrize("name", PUBLISHED)
def test_rows_and_columns_are_the_published_ones(healthy: Healthy, name: str) -> None:
    """What an issue shows of such a machine, in the columns that the profile's driver prints."""
    head, *rows = table_cells(render_matrix(healthy(name)))
    assert head == HEADERS[name]
    devices = len([column for column in head if not column.endswith(("Affinity", "ID"))])
    printed = {row[0]: row[1 : devices + 1] for row in rows}
    expected = {row: cells(text) for row, text in PUBLISHED[name].items()}
    assert {row: printed[row] for row in expected} == expected


def test_links_that_name_themselves_come_out_as_pairs(healthy: Healthy) -> None:
    """NVML names each GPU as its own neighbour; only P2P over NVLink tells who is at the other end."""
    gpus = healthy("ncv4-a100-pcie").gpus
    given = [{group.remote for group in gpu.links if group.state == 1} for gpu in gpus]
    assert given == [{gpu.pci} for gpu in gpus]


def test_links_into_the_rack_lead_to_switches_that_nobody_names(healthy: Healthy) -> None:
    """GB200: the switches stand in other trays, and 18 links of each GPU lead there."""
    for gpu in healthy("gb200-4").gpus:
        assert {(group.state, group.remote_type, group.mbps) for group in gpu.links} == {(1, 2, 53125)}
        assert all(not isinstance(group.remote, str) or not group.remote for group in gpu.links)
        assert gpu.switch_links == 18
        assert (gpu.fabric.cluster_uuid, gpu.fabric.clique) == ("9c6f5af3-53bf-49b5-a436-b66766c413c3", 4026)
