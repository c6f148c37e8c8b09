"""The sysfs readers on a made tree: distances, NUMA nodes, the order of RDMA devices."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodegauge_contract import Unavailable
from nodegauge_probes.host import kernel, rdma
from nodegauge_probes.host.pci import Location, NumaNodes, bus, distance, locate_gpu, numa_node, numa_nodes

Plug = Callable[..., str]


@pytest.fixture
def plug(tmp_path: Path) -> Plug:
    """Put a PCI function into the tree: `plug("pci0000:00/0000:00:02.0/0000:05:00.0", rdma="mlx5_0")`."""

    def put(path: str, *, numa: int | None = 0, rdma: str = "", uverbs: int | None = None) -> str:
        device = tmp_path / "devices" / path
        device.mkdir(parents=True)
        if numa is not None:
            (device / "numa_node").write_text(f"{numa}\n")
        bus = tmp_path / "bus/pci/devices"
        bus.mkdir(parents=True, exist_ok=True)
        (bus / device.name).symlink_to(os.path.relpath(device, bus))
        if rdma:
            entry = device / "infiniband" / rdma
            entry.mkdir(parents=True)
            (entry / "device").symlink_to(os.path.relpath(device, entry))
            infiniband = tmp_path / "class/infiniband"
            infiniband.mkdir(parents=True, exist_ok=True)
            (infiniband / rdma).symlink_to(os.path.relpath(entry, infiniband))
        if uverbs is not None:
            verbs = tmp_path / "class/infiniband_verbs" / f"uverbs{uverbs}"
            verbs.mkdir(parents=True)
            (verbs / "ibdev").write_text(f"{rdma}\n")
        return device.name

    return put


def location(root: Path, pci: str) -> Location:
    result = locate_gpu(root, pci)
    assert isinstance(result, Location)
    return result


@pytest.mark.parametrize(
    ("one", "other", "numa", "letters"),
    [
        ("pci0000:00/0000:00:02.0/0000:04:00.0/0000:05:08.0/0000:07:00.0",
         "pci0000:00/0000:00:02.0/0000:04:00.0/0000:05:10.0/0000:09:00.0", (0, 0), "PIX"),
        ("pci0000:00/0000:00:02.0/0000:04:00.0", "pci0000:00/0000:00:02.0/0000:04:00.1", (0, 0), "PIX"),
        ("pci0000:00/0000:00:02.0/0000:04:00.0/0000:05:08.0/0000:06:00.0/0000:07:00.0/0000:08:00.0",
         "pci0000:00/0000:00:02.0/0000:04:00.0/0000:05:10.0/0000:0a:00.0", (0, 0), "PXB"),
        ("pci0000:00/0000:00:02.0/0000:04:00.0/0000:05:08.0/0000:06:00.0/0000:07:00.0",
         "pci0000:00/0000:00:02.0/0000:04:00.0/0000:05:10.0/0000:0a:00.0", (0, 0), "PXB"),
        ("pci0000:00/0000:00:02.0/0000:04:00.0", "pci0000:00/0000:00:03.0/0000:08:00.0", (0, 0), "PHB"),
        ("pci0000:00/0000:00:02.0/0000:04:00.0", "pci0000:40/0000:40:01.0/0000:41:00.0", (0, 0), "NODE"),
        ("pci0000:00/0000:00:02.0/0000:04:00.0", "pci0000:80/0000:80:01.0/0000:81:00.0", (0, 1), "SYS"),
    ],
)  # fmt: skip
def test_distance_has_the_letters_of_nvidia_smi(
    plug: Plug, tmp_path: Path, one: str, other: str, numa: tuple[int, int], letters: str
) -> None:
    """Host bridge, shared bridges and NUMA nodes decide the letters, in either direction."""
    first, second = plug(one, numa=numa[0]), plug(other, numa=numa[1])
    locations = location(tmp_path, first), location(tmp_path, second)
    assert distance(*locations, nodes=NumaNodes.SEVERAL) == letters
    assert distance(*reversed(locations), nodes=NumaNodes.SEVERAL) == letters


def test_unknown_numa_nodes_are_not_guessed_on_a_machine_with_several(plug: Plug, tmp_path: Path) -> None:
    """-1 on both sides is one node on a one-node machine, and not known on a larger one."""
    one = location(tmp_path, plug("pci0000:00/0000:00:02.0/0000:04:00.0", numa=-1))
    other = location(tmp_path, plug("pci0000:80/0000:80:01.0/0000:81:00.0", numa=-1))
    assert isinstance(one.numa, Unavailable)
    assert distance(one, other, nodes=NumaNodes.ONE) == "NODE"
    assert isinstance(distance(one, other, nodes=NumaNodes.SEVERAL), Unavailable)
    assert distance(replace(one, numa=0), replace(other, numa=0), nodes=NumaNodes.SEVERAL) == "NODE"


def test_the_machine_has_as_many_nodes_as_sysfs_lists(tmp_path: Path) -> None:
    """Only nodeN counts: sysfs keeps files such as `possible` beside them."""
    for name in ("node0", "possible"):
        (tmp_path / "devices/system/node" / name).mkdir(parents=True)
    assert numa_nodes(tmp_path) is NumaNodes.ONE
    (tmp_path / "devices/system/node/node1").mkdir()
    assert numa_nodes(tmp_path) is NumaNodes.SEVERAL


def test_rdma_devices_come_in_registration_order(plug: Plug, tmp_path: Path) -> None:
    """uverbs numbers order the devices; those without one follow by number, 2 before 10."""
    plug("pci0000:00/0000:00:01.0/0000:01:00.0", rdma="mlx5_10")
    plug("pci0000:00/0000:00:02.0/0000:02:00.0", rdma="mlx5_2")
    plug("pci0000:00/0000:00:03.0/0000:03:00.0", rdma="mlx5_1", uverbs=1)
    plug("pci0000:00/0000:00:04.0/0000:04:00.0", rdma="mlx5_7", uverbs=0)
    nics = rdma.nics(tmp_path, [])
    assert nics.names == ["mlx5_7", "mlx5_1", "mlx5_2", "mlx5_10"]
    assert nics.pci == ["0000:04:00.0", "0000:03:00.0", "0000:02:00.0", "0000:01:00.0"]


def test_nics_have_distances_to_gpus_and_to_each_other(plug: Plug, tmp_path: Path) -> None:
    """Rows are NICs; the diagonal among NICs is X; a GPU without a place gives its reason."""
    switch = "pci0000:00/0000:00:02.0/0000:04:00.0"
    gpu = location(tmp_path, plug(f"{switch}/0000:05:08.0/0000:07:00.0"))
    plug(f"{switch}/0000:05:10.0/0000:09:00.0", rdma="mlx5_0")
    plug("pci0000:80/0000:80:01.0/0000:81:00.0", rdma="mlx5_1", numa=1)
    lost = Unavailable("NVML_ERROR_GPU_IS_LOST")
    nics = rdma.nics(tmp_path, [gpu, lost])
    assert nics.to_gpu == [["PIX", lost], ["SYS", lost]]
    assert nics.to_nic == [["X", "SYS"], ["SYS", "X"]]


def test_an_rdma_device_without_a_pci_function_is_listed_with_the_reason(tmp_path: Path) -> None:
    """Software RDMA (rxe) has no place in the PCI tree."""
    device = tmp_path / "devices/virtual/net/eth0"
    device.mkdir(parents=True)
    entry = tmp_path / "class/infiniband/rxe0"
    entry.mkdir(parents=True)
    (entry / "device").symlink_to(device)
    nics = rdma.nics(tmp_path, [])
    assert nics.names == ["rxe0"]
    assert isinstance(nics.pci[0], Unavailable)


def test_a_root_without_anything_gives_reasons_and_no_error(tmp_path: Path) -> None:
    """A container without /sys has no NICs and no places, and says which."""
    result = locate_gpu(tmp_path / "none", "0000:07:00.0")
    assert result == Unavailable("no 0000:07:00.0 in sysfs")
    assert numa_node(result) == result
    assert rdma.nics(tmp_path / "none", [result]).names == []


@pytest.mark.parametrize("content", [None, "", "zero"])
def test_an_odd_numa_file_is_a_reason(plug: Plug, tmp_path: Path, content: str | None) -> None:
    """A missing, empty or wordy numa_node file reads as not available."""
    pci = plug("pci0000:00/0000:00:02.0/0000:04:00.0", numa=None)
    if content is not None:
        (tmp_path / "bus/pci/devices" / pci / "numa_node").write_text(content)
    assert isinstance(numa_node(locate_gpu(tmp_path, pci)), Unavailable)


def test_names_that_are_no_text_are_passed_over(tmp_path: Path) -> None:
    """A file name may be any bytes; one in a document, and none of it could be written."""
    for name in (b"mlx5_0", b"mlx5_\xff"):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).mkdir()
    assert kernel.listing(tmp_path) == ["mlx5_0"]


INFORMATION = "Model: \t\t NVIDIA H100\nBus Location: \t 0000:05:00.0\nGPU Excluded:\t {}\n"
"""/proc/driver/nvidia/gpus/ADDRESS/information (NVIDIA/open-gpu-kernel-modules, nv-procfs.c)."""


@pytest.mark.parametrize(
    ("link", "information", "expected"),
    [
        ("../../../../bus/pci/drivers/nvidia", None, "nvidia"),
        ("../../../../bus/pci/drivers/nvidia", INFORMATION.format("No"), "nvidia"),
        ("../../../../bus/pci/drivers/nvidia", INFORMATION.format("Yes"), "nvidia, excluded"),
        ("../../../../bus/pci/drivers/vfio-pci", None, "vfio-pci"),
        ("/sys/bus/pci/drivers/nouveau", INFORMATION.format("Yes"), "nouveau"),
        (None, None, Unavailable("no driver is bound")),
    ],
)
def test_the_kernel_driver_of_a_gpu_is_read_from_its_link(
    tmp_path: Path, plug: Plug, link: str | None, information: str | None, expected: object
) -> None:
    """No link, no driver; a driver's own list says which GPUs it keeps from users."""
    address = plug("pci0000:00/0000:05:00.0")
    device = tmp_path / "bus/pci/devices" / address
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030200\n")
    if link is not None:
        (device / "driver").symlink_to(link)
    if information is not None:
        folder = tmp_path / "proc/driver/nvidia/gpus" / address
        folder.mkdir(parents=True)
        (folder / "information").write_text(information)
    assert bus(tmp_path, procfs=tmp_path / "proc").drivers == [expected]


def test_a_card_that_is_taken_out_while_it_is_read_is_a_reason(
    plug: Plug, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its links are followed one by one, and each may be gone."""
    plug("pci0000:00/0000:00:02.0/0000:05:00.0", rdma="mlx5_0", uverbs=0)
    (tmp_path / "class/infiniband_verbs/uverbs0/ibdev").write_bytes(b"\xff")

    def gone(path: Path) -> str:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    with monkeypatch.context() as patch:
        patch.setattr(os.path, "realpath", gone)
        nics = rdma.nics(tmp_path, [])
    assert (nics.names, nics.pci) == (["mlx5_0"], [Unavailable("sysfs: No such file or directory")])
