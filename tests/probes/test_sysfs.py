"""What sysfs shows around the GPUs: the PCI bus, network cards, supplies, fans, control groups, /dev/shm."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import NOT_READ, Disk, Nics, Port, Result, Sensor, Unavailable
from nodegauge_contract.model import MAX_PORTS, MAX_SENSORS
from nodegauge_contract.placement import numa_lines
from nodegauge_probes.host import kernel, rdma
from nodegauge_probes.host.disks import disks
from nodegauge_probes.host.hwmon import NO_ALARM, NO_LIMIT, sensors
from nodegauge_probes.host.kernel import Cgroup, shm_bytes
from nodegauge_probes.host.pci import NumaNodes, bus, distance, locate_gpu, numa_node, numa_nodes
from nodegauge_probes.host.rdma import ports
from nodegauge_probes.page import page

NO_FILE = Unavailable("no such file in sysfs")
NO_TOTAL = Unavailable("no TOTAL_ERR_NONFATAL")

Write = Callable[..., None]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """`write("class/hwmon/hwmon0", name="psu", in1_input=12000)`: files in a folder of the tree."""

    def files(folder: str, **contents: Any) -> None:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (tmp_path / folder / name).write_text(f"{content}\n")

    return files


def listed(read: Callable[..., None], *where: object) -> list[Any]:
    read(*where, (readings := []).append)
    return readings


def port(name: str, number: int = 1) -> str:
    return f"class/infiniband/{name}/ports/{number}"


def test_a_port_is_told_in_the_kernels_words(tmp_path: Path, write: Write) -> None:
    write(port("mlx5_1"), state="4: ACTIVE", phys_state="5: LinkUp", rate="200 Gb/sec (4X HDR)")
    write(port("mlx5_1"), link_layer="InfiniBand")
    write(port("mlx5_1") + "/counters", link_downed=3, symbol_error=12, port_rcv_errors=0)
    named = {"state": "ACTIVE", "physical": "LinkUp", "link_layer": "InfiniBand"}
    counted = {"rate_gbps": 200, "link_downed": 3, "symbol_errors": 12, "receive_errors": 0}
    write(port("mlx5_1") + "/counters", local_link_integrity_errors=4, excessive_buffer_overrun_errors=5)
    write(port("mlx5_1") + "/counters", link_error_recovery=6, port_xmit_discards=7)
    write(port("mlx5_1") + "/hw_counters", local_ack_timeout_err=8, rnr_nak_retry_err=9)
    more = {"integrity_errors": 4, "overruns": 5, "recoveries": 6, "discards": 7}
    more |= {"ack_timeouts": 8, "receiver_not_ready": 9}
    assert listed(ports, tmp_path, ["mlx5_0", "mlx5_1"]) == [Port(nic=1, port=1, **named, **counted, **more)]


@pytest.mark.parametrize("chip", ["hwmon3", "hwmon/hwmon3"])
def test_disks_are_told_with_their_errors(tmp_path: Path, write: Write, chip: str) -> None:
    """Two folders that hold a controller's chip, by the kernel's age; a namespace is no controller."""
    write("class/nvme/nvme1", state="dead", model="M")
    write("class/nvme/nvme1/device", aer_dev_fatal="Undefined 0\nDLP 2\nTOTAL_ERR_FATAL 2")
    write("class/nvme/nvme1/device", aer_dev_nonfatal="odd", numa_node=1)
    write(f"class/nvme/nvme1/{chip}", temp1_alarm=1)
    write("class/nvme/nvme0n1", state="live")
    assert listed(disks, tmp_path) == [
        Disk(name="nvme1", model="M", state="dead", fatal=2, nonfatal=NO_TOTAL, too_hot=1, numa_node=1)
    ]


def test_the_clock_of_this_machine_is_read_without_a_right() -> None:
    synchronised, error = kernel.clock_discipline()
    assert isinstance(synchronised, bool)
    assert isinstance(error, int)


def test_ports_stand_in_order_and_are_bounded(tmp_path: Path, write: Write) -> None:
    for number in (10, 2, 1, "x", 999):
        write(port("a", number), state="1: DOWN", rate="2.5 Gb/sec (1X SDR)")  # type: ignore[arg-type]
    rates = {one.port: one.rate_gbps for one in listed(ports, tmp_path, ["a"])}
    assert list(rates.items()) == [(n, 2.5) for n in (1, 2, 10)]
    for number in range(200):
        write(port("b", number), state="4: ACTIVE")
    assert len(listed(ports, tmp_path, ["a", "b"])) == MAX_PORTS


@pytest.mark.parametrize("rate", ["", "nan Gb/sec", "inf Gb/sec", "1e308 Gb/sec", "-1 Gb/sec"])
def test_a_port_that_says_nothing_is_all_reasons(tmp_path: Path, write: Write, rate: str) -> None:
    """JSON has no words for some of Python's floats: the whole document would be refused for one of them."""
    write(port("a"), rate=rate, phys_state="odd")
    write(port("a") + "/counters", link_downed="many")
    [one] = listed(ports, tmp_path, ["a"])
    assert (one.state, one.physical, one.rate_gbps) == (NO_FILE, "odd", Unavailable(f"not a rate: {rate}"))
    assert (one.link_downed, one.symbol_errors) == (Unavailable("not a number"), NO_FILE)


def test_a_supply_is_told_with_labels_limits_and_alarms(tmp_path: Path, write: Write) -> None:
    psu = "class/hwmon/hwmon3"
    write(psu, name="dps800", in2_input=12_100, in2_label="vout1", in2_min=11_000, in2_crit=13_500)
    write(psu, in2_min_alarm=0, in2_crit_alarm=1, power1_average=250_000_000, temp1_input=41_000)
    write(psu, fan1_input=0, fan1_fault=0, curr1_input="x", curr1_max_alarm=0)
    bare = Sensor(chip="dps800", name="", value=0, alarm=NO_ALARM, low=NO_LIMIT, high=NO_LIMIT)
    assert listed(sensors, tmp_path) == [
        replace(bare, name="power1", value=250_000_000),
        replace(bare, name="in2", label="vout1", value=12_100, alarm=1, low=11_000, high=13_500),
        replace(bare, name="curr1", value=Unavailable("not a number"), alarm=0),
        replace(bare, name="fan1", alarm=0),
        replace(bare, name="temp1", value=41_000),
    ]


def test_chips_that_know_nothing_of_supply_are_passed_over(tmp_path: Path, write: Write) -> None:
    write("class/hwmon/hwmon0", name="coretemp", temp1_input=40_000, temp1_crit_alarm=1)
    write("class/hwmon/hwmon1", name="nvme", temp1_input=40_000)
    write("class/hwmon/hwmon2", name="amdgpu", in0_input=800, power1_average=1, fan1_input=0)
    write("class/hwmon/hwmon3", name="dell_smm", fan1_input=2400, temp1_input=40_000)
    write("class/hwmon/hwmon4/device", name="old", in1_input=3300)
    readings = [(sensor.chip, sensor.name, sensor.value) for sensor in listed(sensors, tmp_path)]
    assert readings == [("old", "in1", 3300), ("dell_smm", "fan1", 2400)]


def test_an_alarm_that_cannot_be_read_is_not_silence(tmp_path: Path, write: Write) -> None:
    write("class/hwmon/hwmon0", name="psu", in1_input=1, in1_min_alarm=0, in1_max_alarm="?")
    write("class/hwmon/hwmon0", in2_input=1, in2_min_alarm=1, in2_max_alarm="?")
    assert [sensor.alarm for sensor in listed(sensors, tmp_path)] == [Unavailable("not a number"), 1]


def test_sensors_are_bounded_and_volts_come_first(tmp_path: Path, write: Write) -> None:
    """A board with hundreds of regulators does not fill the document with temperatures."""
    for chip in range(20):
        made = {f"{kind}{n}_input": n for kind in ("temp", "curr", "in") for n in range(1, 11)}
        write(f"class/hwmon/hwmon{chip}", name="vrm", **made)
    read = listed(sensors, tmp_path)
    assert len(read) == MAX_SENSORS
    assert {sensor.name.rstrip("0123456789") for sensor in read} == {"in"}


def device(write: Write, address: str, *, vendor: str = "0x10de", kind: str = "0x030200") -> None:
    write(f"bus/pci/devices/{address}", vendor=vendor, **{"class": kind})


def test_gpus_are_found_on_the_bus_without_the_driver(tmp_path: Path, write: Write) -> None:
    device(write, "0000:41:00.0", kind="0x030000")
    device(write, "0000:0f:00.0")
    device(write, "0000:c0:00.0", kind="0x068000")
    device(write, "0000:01:00.0", vendor="0x1a03", kind="0x030000")
    device(write, "0000:41:00.1", kind="0x040300")
    assert bus(tmp_path, procfs=tmp_path).gpus == ["0000:0f:00.0", "0000:41:00.0"]
    assert bus(tmp_path, procfs=tmp_path).silent == []


def test_a_gpu_that_fell_off_the_bus_is_silent(tmp_path: Path, write: Write) -> None:
    """Its configuration space reads all ones; one that cannot be read is not called silent."""
    configs = {"0000:0f:00.0": b"\xff" * 64, "0000:2d:00.0": b"\xde\x10\x30\x23" + b"\0" * 60}
    for address, config in configs.items():
        device(write, address)
        (tmp_path / "bus/pci/devices" / address / "config").write_bytes(config)
    device(write, "0000:44:00.0")
    assert len(bus(tmp_path, procfs=tmp_path).gpus) == 3  # type: ignore[arg-type]
    assert bus(tmp_path, procfs=tmp_path).silent == ["0000:0f:00.0"]


def test_a_machine_that_hides_its_pci_tree_says_so(tmp_path: Path) -> None:
    assert bus(tmp_path, procfs=tmp_path).gpus == Unavailable("no PCI tree in sysfs")
    (tmp_path / "bus/pci/devices").mkdir(parents=True)
    assert bus(tmp_path, procfs=tmp_path).gpus == []


STAT = "usage_usec 9\nnr_periods 12\nnr_throttled {}\nthrottled_usec 7\n"


def cgroup(root: Path, write: Write, own: str | None = None, **stats: str) -> Cgroup:
    """Of a process in these control groups, of which these files exist."""
    if own is not None:
        write("proc/self", cgroup=own.removesuffix("\n"))
    for path, text in stats.items():
        folder, _, name = f"fs/cgroup/{path}".rpartition("/")
        write(folder, **{name: text})
    return Cgroup(sysfs=root, procfs=root / "proc")


@pytest.mark.parametrize(
    ("own", "path"),
    [
        ("0::/\n", "cpu.stat"),
        ("", "cpu.stat"),
        ("0::/kubepods.slice/pod1/c1\n", "kubepods.slice/pod1/c1/cpu.stat"),
        ("0::/kubepods.slice/pod1/c1\n", "cpu.stat"),
        ("4:cpu,cpuacct:/kubepods/pod1/c1\n0::/\n", "cpu,cpuacct/kubepods/pod1/c1/cpu.stat"),
        ("4:cpu,cpuacct:/kubepods/pod1/c1\n", "cpu,cpuacct/cpu.stat"),
        ("1:cpu:/\n4:memory:/x\n0::/\n", "cpu/cpu.stat"),
    ],
)
def test_throttling_of_both_versions(tmp_path: Path, write: Write, own: str, path: str) -> None:
    assert cgroup(tmp_path, write, own, **{path: STAT.format(5)}).throttled_periods() == 5


def test_own_group_comes_first(tmp_path: Path, write: Write) -> None:
    """On a machine the root counts everybody's."""
    stats = {"cpu.stat": STAT.format(99), "mine/cpu.stat": STAT.format(1)}
    assert cgroup(tmp_path, write, "0::/mine\n", **stats).throttled_periods() == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("memory.events", "low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\noom_group_kill 0\n"),
        ("memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
    ],
)
def test_kills_of_both_versions(tmp_path: Path, write: Write, path: str, text: str) -> None:
    assert cgroup(tmp_path, write, **{path: text}).oom_kills() == 2


def test_what_is_not_there_is_a_reason(tmp_path: Path, write: Write) -> None:
    why = Unavailable("no nr_throttled in this control group")
    assert cgroup(tmp_path, write).throttled_periods() == why
    root = cgroup(tmp_path, write, **{"cpu.stat": "usage_usec 9"})
    assert root.throttled_periods() == why
    assert isinstance(root.oom_kills(), Unavailable)


def test_the_size_of_dev_shm(tmp_path: Path) -> None:
    assert shm_bytes(tmp_path) > 1 << 20  # type: ignore[operator]
    assert isinstance(shm_bytes(tmp_path / "nowhere"), Unavailable)


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
    first, second = plug(one, numa=numa[0]), plug(other, numa=numa[1])
    locations = locate_gpu(tmp_path, first), locate_gpu(tmp_path, second)
    assert distance(*locations, nodes=NumaNodes.SEVERAL) == letters
    assert distance(*reversed(locations), nodes=NumaNodes.SEVERAL) == letters


def test_unknown_numa_nodes_are_not_guessed_on_a_machine_with_several(plug: Plug, tmp_path: Path) -> None:
    one = locate_gpu(tmp_path, plug("pci0000:00/0000:00:02.0/0000:04:00.0", numa=-1))
    other = locate_gpu(tmp_path, plug("pci0000:80/0000:80:01.0/0000:81:00.0", numa=-1))
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
    plug("pci0000:00/0000:00:01.0/0000:01:00.0", rdma="mlx5_10")
    plug("pci0000:00/0000:00:02.0/0000:02:00.0", rdma="mlx5_2")
    plug("pci0000:00/0000:00:03.0/0000:03:00.0", rdma="mlx5_1", uverbs=1)
    plug("pci0000:00/0000:00:04.0/0000:04:00.0", rdma="mlx5_7", uverbs=0)
    nics = rdma.nics(tmp_path, [])
    assert nics.names == ["mlx5_7", "mlx5_1", "mlx5_2", "mlx5_10"]
    assert nics.pci == ["0000:04:00.0", "0000:03:00.0", "0000:02:00.0", "0000:01:00.0"]


def test_nics_have_distances_to_gpus_and_to_each_other(plug: Plug, tmp_path: Path) -> None:
    switch = "pci0000:00/0000:00:02.0/0000:04:00.0"
    gpu = locate_gpu(tmp_path, plug(f"{switch}/0000:05:08.0/0000:07:00.0"))
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
    result = locate_gpu(tmp_path / "none", "0000:07:00.0")
    assert result == Unavailable("no 0000:07:00.0 in sysfs")
    assert numa_node(result) == result
    assert rdma.nics(tmp_path / "none", [result]).names == []
    assert listed(sensors, tmp_path / "none") == []


@pytest.mark.parametrize("content", [None, "", "zero"])
def test_an_odd_numa_file_is_a_reason(plug: Plug, tmp_path: Path, content: str | None) -> None:
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
    plug("pci0000:00/0000:00:02.0/0000:05:00.0", rdma="mlx5_0", uverbs=0)
    (tmp_path / "class/infiniband_verbs/uverbs0/ibdev").write_bytes(b"\xff")

    def gone(path: Path) -> str:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    with monkeypatch.context() as patch:
        patch.setattr(os.path, "realpath", gone)
        nics = rdma.nics(tmp_path, [])
    assert (nics.names, nics.pci) == (["mlx5_0"], [Unavailable("sysfs: No such file or directory")])


def test_numa_nodes_have_a_line_each() -> None:
    """What has none that is known comes last; without any known there is no line."""
    gpus = [made.gpu(n, name="X", numa_node=n // 3 if n != 4 else NOT_READ) for n in range(5)]
    nics = Nics(names=["mlx5_0", "mlx5_1"], numa=[1, 0])
    disks = [Disk(name="nvme0", numa_node=1), Disk(name="nvme1")]
    result = Result(probe="health", gpus=gpus, nics=nics, disks=disks)
    lines = [
        "NUMA node 0: GPU 0-2; mlx5_1",
        "NUMA node 1: GPU 3; mlx5_0; nvme0",
        "NUMA node unknown: GPU 4; nvme1",
    ]
    assert numa_lines(result) == lines
    assert "\n".join(lines) in page.render(result)
    assert numa_lines(Result(probe="health", disks=disks[1:], gpus=gpus[4:])) == []
