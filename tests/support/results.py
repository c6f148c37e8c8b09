"""Result documents of made and of real machines: numbers are published or recorded, each with its source."""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

import nodegauge_contract as contract

NOT_SUPPORTED = 5
SPAN = contract.Span(min=30, median=31, max=32)

DGX1_NV = (
    (0, 1, 1, 2, 2, 0, 0, 0),
    (1, 0, 2, 1, 0, 2, 0, 0),
    (1, 2, 0, 2, 0, 0, 1, 0),
    (2, 1, 2, 0, 0, 0, 0, 1),
    (2, 0, 0, 0, 0, 1, 1, 2),
    (0, 2, 0, 0, 1, 0, 2, 1),
    (0, 0, 1, 0, 1, 2, 0, 2),
    (0, 0, 0, 1, 2, 1, 2, 0),
)
"""NV# of a recorded DGX-1V (microsoft/sccl, tests/test_topologies.py, MIT)."""


def pci(gpu_index: int) -> str:
    return f"0000:{0x0F + gpu_index:02x}:00.0"


def uuid(gpu_index: int) -> str:
    return f"GPU-{gpu_index:08x}-1111-2222-3333-444444444444"


def gpu(gpu_index: int, *, name: str, links: Sequence[contract.LinkGroup] = (), **more: Any) -> contract.Gpu:
    known: dict[str, Any] = {
        "index": gpu_index,
        "uuid": uuid(gpu_index),
        "pci": pci(gpu_index),
        "vbios": "96.00.74.00.01",
        "mig": 0,
        "switch_links": contract.Unavailable("NVML_ERROR_NOT_SUPPORTED"),
        "temperature": contract.Temperature(gpu=31, gpu_max=85, memory=40, memory_max=95),
        "power": contract.Power(usage_mw=60_000, enforced_limit_mw=400_000, default_limit_mw=400_000),
        "clocks": contract.Clocks(sm_mhz=210, pstate=0),
        "events": contract.ClocksEvents(supported=0x1FF, read=12),
        "window": contract.Window(seconds=3.0, samples=12, temperature=SPAN),
    }
    return contract.Gpu(name=name, links=list(links), **(known | more))


def direct(gpu_index: int, row: Sequence[int], *, mbps: int) -> list[contract.LinkGroup]:
    """Active links of one GPU to its peers, numbered from 0: `row[j]` of them lead to the GPU in place j."""
    groups: list[contract.LinkGroup] = []
    first = 0
    for peer, count in enumerate(row):
        if count and peer != gpu_index:
            numbers = list(range(first, first + count))
            groups.append(
                contract.LinkGroup(links=numbers, state=1, p2p=1, remote=pci(peer), remote_type=0, mbps=mbps)
            )
            first += count
    return groups


def to_switch(count: int, *, mbps: int, **more: Any) -> list[contract.LinkGroup]:
    known: dict[str, Any] = {"remote": "0000:c0:00.0", "remote_type": 2, "state": 1, "p2p": 1, "mbps": mbps}
    return [contract.LinkGroup(links=list(range(count)), **(known | more))]


def pairs(joined: Sequence[Sequence[bool | int]]) -> contract.Pairs:
    size = range(len(joined))

    def grid(status: Callable[[int, int], int]) -> list[list[contract.Int]]:
        return [[-1 if i == j else status(i, j) for j in size] for i in size]

    return contract.Pairs(
        ancestor=grid(lambda i, j: 50),
        read=grid(lambda i, j: 0),
        write=grid(lambda i, j: 0),
        nvlink=grid(lambda i, j: 0 if joined[i][j] else NOT_SUPPORTED),
    )


def machine(
    gpus: Sequence[contract.Gpu], joined: Sequence[Sequence[bool | int]], **more: Any
) -> contract.Result:
    return contract.Result(
        probe="health",
        run="run-1",
        node="node-1",
        host=contract.Host(boot_id="c0ffee00-0000-4000-8000-000000000000", boottime_ms=3_600_000),
        system=contract.System(driver="550.54.15", nvml="12.550.54.15", cuda=12040),
        gpus=list(gpus),
        pairs=pairs(joined),
        **more,
    )


def mesh(nv: Sequence[Sequence[int]], *, name: str, mbps: int, **more: Any) -> contract.Result:
    return machine(
        [gpu(i, name=name, links=direct(i, row, mbps=mbps), **more) for i, row in enumerate(nv)], nv
    )


def switched(count: int, *, name: str, links: int, mbps: int, **more: Any) -> contract.Result:
    made = [
        gpu(i, name=name, links=to_switch(links, mbps=mbps), switch_links=links, **more) for i in range(count)
    ]
    return machine(made, [[i != j for j in range(count)] for i in range(count)])


def h100(count: int = 8) -> contract.Result:
    """HGX H100: 18 links at a raw 26.562 GB/s (stas00/ml-engineering, network)."""
    return switched(count, name="NVIDIA H100 80GB HBM3", links=18, mbps=26_562)


def h800() -> contract.Result:
    """HGX H800: 8 of H100's 18 links."""
    return switched(8, name="NVIDIA H800", links=8, mbps=26_562)


def a100() -> contract.Result:
    """HGX A100 with NVSwitch: 12 links at 25 GB/s (leptonai/gpud, recorded `nvidia-smi nvlink -s`)."""
    return switched(8, name="NVIDIA A100-SXM4-80GB", links=12, mbps=25_000)


def hgx_a100_4() -> contract.Result:
    nv = [[0 if i == j else 4 for j in range(4)] for i in range(4)]
    return mesh(nv, name="NVIDIA A100-SXM4-40GB", mbps=25_000)


def dgx1(gpu_indexes: Sequence[int] = range(8)) -> contract.Result:
    nv = [[DGX1_NV[i][j] for j in gpu_indexes] for i in gpu_indexes]
    return mesh(nv, name="Tesla V100-SXM2-32GB", mbps=25_781)


def titan() -> contract.Result:
    """Two TITAN RTX with a bridge: NV2 (Hugging Face, hardware page)."""
    return mesh([[0, 2], [2, 0]], name="NVIDIA TITAN RTX", mbps=25_781)


def rtx3090() -> contract.Result:
    """Two RTX 3090 with a bridge: NV4 of 14.0625 GB/s."""
    return mesh([[0, 4], [4, 0]], name="NVIDIA GeForce RTX 3090", mbps=14_062)


def phb() -> contract.Result:
    """Two GPUs on one host bridge, no NVLink (Hugging Face, hardware page)."""
    return mesh([[0, 0], [0, 0]], name="NVIDIA GeForce RTX 4090", mbps=0)


def a100_bridged_pairs() -> contract.Result:
    """Four A100 PCIe cards, bridged two and two, 12 links a bridge."""
    nv = [[0, 12, 0, 0], [12, 0, 0, 0], [0, 0, 0, 12], [0, 0, 12, 0]]
    return mesh(nv, name="NVIDIA A100 80GB PCIe", mbps=25_000)


def ncv4() -> contract.Result:
    """`a100_bridged_pairs` in a virtual machine: every link names its own GPU (Azure/azhpc-images, NCv4)."""
    bare = a100_bridged_pairs()
    links = ([replace(group, remote=g.pci, remote_type=0) for group in g.links] for g in bare.gpus)
    return replace(bare, gpus=[replace(g, links=own) for g, own in zip(bare.gpus, links, strict=True)])


def with_gpu(result: contract.Result, gpu_index: int, **changes: Any) -> contract.Result:
    gpus = [replace(g, **changes) if i == gpu_index else g for i, g in enumerate(result.gpus)]
    return replace(result, gpus=gpus)


def with_links(result: contract.Result, gpu_index: int, **changes: Any) -> contract.Result:
    groups = [replace(group, **changes) for group in result.gpus[gpu_index].links]
    return with_gpu(result, gpu_index, links=groups)


def every_link(result: contract.Result, **changes: Any) -> contract.Result:
    for gpu_index in range(len(result.gpus)):
        result = with_links(result, gpu_index, **changes)
    return result


def without_links(result: contract.Result, gpu_index: int, *, count: int) -> contract.Result:
    groups: list[contract.LinkGroup] = []
    left = count
    for group in reversed(result.gpus[gpu_index].links):
        down = group.links[max(0, len(group.links) - left) :] if left else []
        up = group.links[: len(group.links) - len(down)]
        left -= len(down)
        groups += [replace(group, links=up)] if up else []
        groups += [replace(group, links=down, state=0)] if down else []
    return with_gpu(result, gpu_index, links=groups)


def with_pair(result: contract.Result, i: int, j: int, **status: Any) -> contract.Result:
    """The document with the P2P status of one pair changed, both directions: `read=5`, `nvlink=...`."""
    grids = {}
    for name, value in status.items():
        grid = [list(row) for row in getattr(result.pairs, name)]
        grid[i][j] = grid[j][i] = value
        grids[name] = grid
    return replace(result, pairs=replace(result.pairs, **grids))


def shuffled(result: contract.Result, order: Sequence[int]) -> contract.Result:
    grids = {
        name: [[getattr(result.pairs, name)[i][j] for j in order] for i in order]
        for name in ("ancestor", "read", "write", "nvlink")
    }
    return replace(result, gpus=[result.gpus[i] for i in order], pairs=contract.Pairs(**grids))


def every_gpu(result: contract.Result, **changes: Any) -> contract.Result:
    return replace(result, gpus=[replace(gpu, **changes) for gpu in result.gpus])


def later(result: contract.Result, *, seconds: float = 900) -> contract.Result:
    now = result.host.boottime_ms
    assert isinstance(now, int)
    return replace(result, host=replace(result.host, boottime_ms=now + round(seconds * 1000)))


def rebooted(result: contract.Result) -> contract.Result:
    return replace(result, host=replace(result.host, boot_id="b0070000-0000-4000-8000-000000000000"))


def with_bus(result: contract.Result, *, more: Sequence[str] = ()) -> contract.Result:
    addresses = [gpu.pci for gpu in result.gpus if isinstance(gpu.pci, str)]
    return replace(result, bus=contract.Bus(gpus=[*addresses, *more], silent=[]))


def with_ports(result: contract.Result, *states: str, **port: Any) -> contract.Result:
    known: dict[str, Any] = {"rate_gbps": 400, "link_layer": "InfiniBand", "link_downed": 0}
    known |= {"symbol_errors": 0, "receive_errors": 0} | port
    nics = contract.Nics(
        names=[f"mlx5_{i}" for i in range(len(states))],
        pci=[f"0000:{0x80 + i:02x}:00.0" for i in range(len(states))],
        to_gpu=[["PIX", *["SYS"] * (len(result.gpus) - 1)] for _ in states],
        ports=[contract.Port(nic=i, port=1, state=state, **known) for i, state in enumerate(states)],
    )
    return replace(result, nics=nics)


def with_port(result: contract.Result, number: int, **changes: Any) -> contract.Result:
    ports = [replace(p, **changes) if i == number else p for i, p in enumerate(result.nics.ports)]
    return replace(result, nics=replace(result.nics, ports=ports))


def instrumented(result: contract.Result) -> contract.Result:
    most = contract.Pcie(generation=4, width=16, max_generation=4, max_width=16, card_generation=4)
    full = every_gpu(
        result,
        pcie=replace(most, utilization=97, replays=3, correctable=0),
        link_errors=contract.LinkErrors(replay=0, recovery=0, crc_flit=0, crc_data=0, recovery_failed=0),
        ecc=contract.Ecc(mode=1, volatile_corrected=0, volatile_uncorrected=0, sram_threshold=0),
        repair=contract.Repair(rows_pending=0, rows_failed=0, unrepairable=0, action=0),
        xids=contract.Xids(registered=True),
        fans=[contract.Fan(percent=70, target=70, rpm=2400)],
    )
    sensors = [
        contract.Sensor(chip="acbel_fsg032", name="in1", label="vin", value=231_000, alarm=0),
        contract.Sensor(chip="acbel_fsg032", name="in2", label="vout1", value=12_100, alarm=0),
    ]
    return replace(with_bus(with_ports(full, *["ACTIVE"] * 4)), sensors=sensors)
