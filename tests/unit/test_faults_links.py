"""Links, P2P, lost and hidden GPUs while a client runs: NVML and sysfs change as they would in life."""

from __future__ import annotations

from pathlib import Path

from support.machines import link_ends, sysfs
from testbed.driver.client import GPU, NvmlClient
from testbed.hardware import Hardware, plug

INSUFFICIENT_POWER, GPU_IS_LOST, MISMATCH = 8, 15, 18
READ, WRITE, NVLINK = 0, 1, 2


def test_p2p_flips_while_links_stay_up_and_a_client_runs(h100: Hardware, nvml: NvmlClient) -> None:
    """One client sees READ, WRITE and NVLINK granted, refused, refused for WRITE alone, and granted again."""

    def statuses() -> list[list[int]]:
        return [
            sorted(
                {nvml.ask("nvmlDeviceGetP2PStatus", GPU(0), GPU(other), capability) for other in range(1, 8)}
            )
            for capability in (READ, WRITE, NVLINK)
        ]

    assert statuses() == [[0], [0], [0]]
    h100.fault("p2p-refused")
    assert statuses() == [[5], [5], [5]]
    assert nvml.field(0, 147)["value"]["uiVal"] == 18
    h100.heal()
    h100.fault("p2p-refused", kind="write", status="disabled-by-regkey")
    assert statuses() == [[0], [4], [0]]
    h100.heal()
    assert statuses() == [[0], [0], [0]]


def test_a_cut_link_is_down_at_both_ends(tmp_path: Path) -> None:
    """On the mesh, NV2 becomes NV1 in both directions; with no link left, P2P is no longer over NVLink."""
    hardware = plug("titan-rtx-nv2", tmp_path)

    with NvmlClient(hardware.env()) as nvml:

        def ups() -> list[int]:
            return [len(link_ends(nvml, gpu, 2)) for gpu in (0, 1)]

        hardware.fault("link-down", gpu=1, link=0)
        assert ups() == [1, 1]
        assert nvml.ask("nvmlDeviceGetP2PStatus", GPU(0), GPU(1), NVLINK) == 0
        hardware.fault("link-down", gpu=0, link=1)
        assert ups() == [0, 0]
        assert nvml.ask("nvmlDeviceGetP2PStatus", GPU(0), GPU(1), NVLINK) == 5
        assert nvml.ask("nvmlDeviceGetP2PStatus", GPU(0), GPU(1), READ) == 0  # over PCIe


def test_a_gpu_without_links_on_a_switch_leaves_the_others_alone(h100: Hardware, nvml: NvmlClient) -> None:
    """Its 18 links to switches are down, its pairs lose NVLINK, other pairs keep it."""
    h100.fault("gpu-links-down", gpu=2)

    assert [nvml.field(gpu, 147)["value"]["uiVal"] for gpu in (1, 2, 3)] == [18, 0, 18]
    assert nvml.ask("nvmlDeviceGetP2PStatus", GPU(2), GPU(1), NVLINK) == 5
    assert nvml.ask("nvmlDeviceGetP2PStatus", GPU(3), GPU(1), NVLINK) == 0


def test_hidden_gpus_are_still_on_the_bus_and_at_the_ends_of_links(tmp_path: Path) -> None:
    """A container that sees 4 of 8 GPUs: NVML counts 4, sysfs has 8, links name GPUs that are not visible."""
    hardware = plug("dgx1-v100-8", tmp_path)
    hardware.fault("gpus-hidden", visible=4)

    with NvmlClient(hardware.env()) as nvml:
        assert nvml.ask("nvmlDeviceGetCount") == 4
        assert "0000:85:00.0" in link_ends(nvml, 0, 6)
    classes = [p.read_text().strip() for p in sysfs(hardware).glob("bus/pci/devices/*/class")]
    assert classes.count("0x030200") == 8
    assert hardware.gpu_count == 8


def test_faults_add_up_and_heal_one_by_one(h100: Hardware, nvml: NvmlClient) -> None:
    """Two faults of one name and one of another: healing a name leaves the rest."""
    h100.fault("hot", gpu=0, celsius=90)
    h100.fault("hot", gpu=1, celsius=91)
    h100.fault("link-down", gpu=0, link=17)

    def heat() -> list[int]:
        return [nvml.ask("nvmlDeviceGetTemperature", GPU(gpu), 0) for gpu in (0, 1, 2)]

    assert (heat(), nvml.field(0, 147)["value"]["uiVal"]) == ([90, 91, 33], 17)
    h100.heal("hot")
    assert (heat(), nvml.field(0, 147)["value"]["uiVal"]) == ([33, 33, 33], 17)
