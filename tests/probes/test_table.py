"""The page for a person, of a health run and of a benchmark."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import nodegauge_contract as contract
from nodegauge_probes.page import page as table
from support.probing import Healthy, On, table_cells
from support.results import with_gpu

GOLDEN = Path(__file__).parent.parent / "golden"
ONCE, THRICE = (contract.XidCount(count=count, first=5, last=9) for count in (1, 3))


def test_a_table_is_for_people(probe: On) -> None:
    on = probe("dgx1-v100-8")
    run = on.run("--format", "table")
    assert run.returncode == 0
    assert contract.render_matrix(on.result()) in run.stdout
    for text in ("Tesla V100", "6 of 6 up", "4/7 TNS", "topology not supported", "idle", "counters trio"):
        assert text in run.stdout
    assert run.stdout.isascii()


def test_a_table_without_a_driver_says_what_to_do(probe: On, tmp_path: Path) -> None:
    on = probe("titan-rtx-nv2")
    on.environment["LD_LIBRARY_PATH"] = str(tmp_path)
    run = on.run("--format", "table")
    assert run.returncode == 0
    assert "NOTHING COULD BE READ: library-not-found" in run.stdout
    assert "install the NVIDIA driver" in " ".join(run.stdout.split())
    assert "GPU  " not in run.stdout


def test_a_terminal_gets_no_line_that_it_would_break(healthy: Healthy) -> None:
    result = healthy("h100-sxm-8")
    narrow = contract.render_matrix(result, width=120)
    assert max(map(len, narrow.splitlines())) <= 120
    parts = narrow.split("\n\nLegend")[0].split("\n\n")
    assert len(parts) > 1
    assert cells(*parts) == cells(contract.render_matrix(result).split("\n\nLegend")[0])


def cells(*tables: str) -> dict[tuple[str, str], str]:
    by_cell = {}
    for head, *rows in map(table_cells, tables):
        for name, *row in rows:
            by_cell |= {(name, column): cell for column, cell in zip(head, row, strict=False)}
    return by_cell


def test_a_table_of_a_broken_machine_names_what_is_broken(probe: On) -> None:
    on = probe("titan-rtx-nv2")
    on.hardware.fault("gpu-lost", gpu=1)
    assert "gpu-lost: NVML_ERROR_GPU_IS_LOST" in on.run("--format", "table").stdout
    on.hardware.heal()
    on.hardware.fault("gpus-hidden", visible=0)
    assert "NVIDIA_VISIBLE_DEVICES=all" in on.run("--format", "table").stdout
    on.hardware.heal()
    on.hardware.fault("hung-call")
    stdout = on.run("--format", "table", "--deadline", "6").stdout
    assert "INCOMPLETE: call-hung in nvmlDeviceGetPowerUsage" in stdout
    assert "NV2" in stdout


def test_gpus_that_say_the_same_share_a_row(healthy: Healthy) -> None:
    result = healthy("h100-sxm-8")
    assert rows_of(result, "Errors (since") == ["0-7"]
    bad = with_gpu(result, 3, ecc=replace(result.gpus[3].ecc, volatile_uncorrected=2))
    changed = with_gpu(bad, 5, repair=replace(result.gpus[5].repair, action=2))
    assert rows_of(changed, "Errors (since") == ["0-2,4,6-7", "3", "5"]
    assert "node reboot" in table.render(changed)


def rows_of(result: contract.Result, title: str) -> list[str]:
    block = next(block for block in table.render(result).split("\n\n") if block.startswith(title))
    return [line.split()[0] for line in block.splitlines()[2:]]


def test_the_page_stays_narrow(healthy: Healthy) -> None:
    busy = contract.decode((GOLDEN / "result-1.1-dgx2-busy.json").read_text())
    for shown, widest in ((healthy("dgx2-v100-16"), 120), (busy, 135)):
        rest = table.render(shown).replace(contract.render_matrix(shown), "")
        assert max(map(len, rest.splitlines())) <= widest
        assert rest.isascii()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"counters": contract.Counters(sw_thermal_ns=7_200_000_000_000)}, "2.0 h"),
        ({"counters": contract.Counters(power_brake_ns=1_500_000_000)}, "1.5 s"),
        (
            {"repair": contract.Repair(rows_corrected=1, rows_uncorrected=2, rows_pending=1)},
            "3 rows, pending",
        ),
        (
            {"repair": contract.Repair(rows_uncorrected=9, rows_failed=1, unrepairable=1)},
            "9 rows, FAILED, unrepairable",
        ),
        ({"repair": contract.Repair(pages_single_bit=4, pages_pending=1)}, "4 pages, pending"),
        ({"repair": contract.Repair(action=9)}, "action 9"),
        ({"ecc": contract.Ecc(mode=1, sram_threshold=1)}, "on, SRAM above its limit"),
        ({"ecc": contract.Ecc(mode=0)}, "off"),
        ({"xids": contract.Xids(registered=True, seen=[79, 31])}, "79, 31"),
        ({"xids": contract.Xids(registered=True, seen=[79, 31], counts=[ONCE, THRICE])}, "79, 31 (3x)"),
        ({"link_errors": contract.LinkErrors(recovery_failed=2, replay=0)}, "2 recovery failed"),
        ({"pcie": contract.Pcie(replays=3, correctable=5)}, "3 replay, 5 correctable"),
        ({"fans": [contract.Fan(rpm=0, target=70), contract.Fan(percent=30)]}, "0 rpm at 70 %, 30 %"),
    ],
)
def test_what_is_wrong_with_a_gpu_is_shown(change: dict[str, Any], text: str) -> None:
    assert text in table.render(contract.Result(probe="health", gpus=[contract.Gpu(index=0, **change)]))


def test_ports_that_are_alike_share_a_row() -> None:
    up = [contract.Port(nic=n, port=1, state="ACTIVE", physical="LinkUp", rate_gbps=400) for n in range(3)]
    down = contract.Port(nic=3, port=2, state="DOWN", physical="Polling", rate_gbps=400, link_downed=4)
    nics = contract.Nics(names=["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"], ports=[*up, down])
    page = table.render(contract.Result(probe="health", nics=nics))
    assert "3  ACTIVE  LinkUp   400 Gb/s" in page
    assert "mlx5_0 to mlx5_2" in page
    assert "1  DOWN    Polling  400 Gb/s" in page
    assert "4 link down" in page
    assert "mlx5_3/2" in page
    apart = [up[0], up[1], replace(up[2], nic=3)]
    page = table.render(contract.Result(probe="health", nics=replace(nics, ports=apart)))
    assert "mlx5_0, mlx5_1, mlx5_3" in page


def test_sensors_have_their_units_and_alarms() -> None:
    sensors = [
        contract.Sensor(chip="psu", name="in1", label="vout1", value=12_110, alarm=0),
        contract.Sensor(chip="psu", name="in1", label="vout1", value=10_900, alarm=1),
        contract.Sensor(chip="psu", name="power1", value=250_000_000),
        contract.Sensor(chip="board", name="fan2", value=contract.Unavailable("x")),
    ]
    page = table.render(contract.Result(probe="health", sensors=sensors))
    assert "psu: vout1 12.11 V, 10.90 V ALARM; power1 250 W" in page
    assert "board: fan2 - rpm" in page


def test_the_bus_is_mentioned_only_where_it_tells_something_else() -> None:
    gpu = contract.Gpu(index=0, pci="0000:0f:00.0")
    same = contract.Result(probe="health", gpus=[gpu], bus=contract.Bus(gpus=["0000:0f:00.0"]))
    assert "PCI bus" not in table.render(same)
    silent = contract.Bus(gpus=["0000:0f:00.0", "0000:2d:00.0"], silent=["0000:2d:00.0"])
    assert "0000:2d:00.0 is on the PCI bus but does not respond" in table.render(replace(same, bus=silent))
    hidden = contract.Bus(gpus=["0000:0f:00.0", "0000:44:00.0"])
    assert "unknown to the driver: 0000:44:00.0" in table.render(replace(same, bus=hidden))
    passed = table.render(replace(same, bus=replace(hidden, drivers=["nvidia", "vfio-pci"])))
    assert "0000:44:00.0 is not for this driver: vfio-pci" in passed
    assert "unknown to the driver" not in passed


def test_notes_are_short_where_nobody_misses_anything() -> None:
    no = contract.Unavailable("NVML_ERROR_NOT_SUPPORTED")
    gpu = contract.Gpu(
        index=0,
        fabric=contract.Fabric(**dict.fromkeys(contract.Fabric.__struct_fields__, no)),
        temperature=contract.Temperature(gpu_max=85, shutdown=no, tlimit_gpu_max=no, margin=no, memory=no),
    )
    page = table.render(contract.Result(probe="health", gpus=[gpu]))
    [note] = [line for line in page.splitlines() if line.startswith("  not supported by this GPU")]
    assert note == "  not supported by this GPU: fabric; temperature memory, shutdown"


def nccl_page(nccl: contract.NcclResult, *, problem: contract.Problem | None = None) -> str:
    return table.render(contract.Result(probe="nccl", nccl=nccl, problem=problem))


def split_rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_a_page_of_eight_h100() -> None:
    shown = table.render(contract.decode((GOLDEN / "result-1.2-h100-nccl.json").read_text()))
    rows = split_rows(shown)
    assert ["Collective", "Size", "default", "p2p-off", "nvls-off"] in rows
    assert ["all_reduce", "1", "GiB", "462.3", "GB/s", "NVLS", "-", "352.4", "GB/s", "RING"] in rows
    assert sum(row[:1] == ["from"] for row in rows) == 8
    assert "8 x NVIDIA H100 80GB HBM3" in shown
    assert shown.count("NV18") >= 56


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    """2 GiB in 1 s on 4 GPUs: times 1.5 for all_reduce, 0.75 for the others; small messages are a time."""
    arm = contract.Arm(
        name="default",
        cells=[
            contract.Cell(collective="all_reduce", bytes=1 << 31, us=1e6),
            contract.Cell(collective="all_gather", bytes=1 << 31, us=1e6, algorithm="RING", wrong=3),
            contract.Cell(collective="reduce_scatter", bytes=4096, us=17.25, launch_us=9.0),
            contract.Cell(collective="reduce_scatter", bytes=8, us=17.25, launch_us=16.0),
        ],
    )
    rows = split_rows(nccl_page(contract.NcclResult(engine="script", ranks=4, arms=[arm])))
    assert ["all_reduce", "2", "GiB", "3.221", "GB/s"] in rows
    assert ["all_gather", "2", "GiB", "1.611", "GB/s", "RING", "3", "WRONG"] in rows
    assert ["reduce_scatter", "4", "KiB", "17.25", "us"] in rows
    assert ["reduce_scatter", "8", "B", "17.25", "us", "launch-bound"] in rows


def test_how_an_arm_ended_and_what_was_left_out() -> None:
    arm = contract.Arm(
        name="default", outcome="hung", phase="init", message="init exceeded its time limit", init_ms=9
    )
    problem = contract.Problem(kind=contract.ProblemKind.TERMINATED, call="", message="SIGTERM after 3.0 s")
    nccl = contract.NcclResult(ranks=2, arms=[arm], cut=["all_reduce/8", "pairs/268435456"])
    shown = nccl_page(nccl, problem=problem)
    assert "INCOMPLETE: terminated. SIGTERM after 3.0 s." in shown
    assert "hung in init" in shown
    assert "init exceeded its time limit" in shown
    assert "Left out for lack of time or memory: all_reduce/8, pairs/268435456" in shown


def test_a_node_that_was_skipped() -> None:
    shown = nccl_page(contract.NcclResult(skipped="busy", message="GPU 2 is in use by 1 compute process"))
    assert shown.strip() == "NOT MEASURED: busy. GPU 2 is in use by 1 compute process"
