"""What the health probe brings home: a fault shows on its own GPU alone, and a pass is earned."""

import os
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nodegauge_contract import Gpu, Result, Unavailable, render_matrix
from nodegauge_judge import History, Verdict, judge_health
from nodegauge_judge.coverage import VALUES
from support.probing import Healthy, On, table_cells
from support.results import with_gpu
from testbed import profiles

TOO_OLD = Unavailable("NVML_ERROR_FUNCTION_NOT_FOUND")


@pytest.mark.parametrize("profile", profiles.names())
def test_every_profile_is_read_without_a_problem(machine: On, healthy: Healthy, profile: str) -> None:
    on, result = machine(profile), healthy(profile)
    assert (result.problem, result.probe, result.run, result.node) == (None, "health", "run-1", "node-1")
    shown, model = profiles.load(profile).visible, profiles.load(profile).model
    assert len(result.gpus) == (on.hardware.gpu_count if shown is None else shown)
    if "hides" in profile:
        assert len(result.gpus) < len(result.bus.gpus) == on.hardware.gpu_count
    assert {gpu.name for gpu in result.gpus} == {on.hardware.gpu_product}
    assert len({gpu.uuid for gpu in result.gpus}) == len(result.gpus)
    boot = Path(on.env()["NODEGAUGE_PROCFS"]) / "sys/kernel/random/boot_id"
    assert result.host.boot_id == boot.read_text().strip()
    for gpu in result.gpus:
        assert gpu.error is None
        assert isinstance(gpu.temperature.gpu, int) is (model.temperature is not None)
        assert isinstance(gpu.power.usage_mw, int) is (model.temperature is not None)
        assert isinstance(gpu.events.supported, int)
        assert gpu.events.read == gpu.window.samples > 0
        assert gpu.window.sm_mhz is not None
    assert isinstance(result.host.boottime_ms, int)


def test_an_nvswitch_machine_has_its_links_and_its_fabric(healthy: Healthy) -> None:
    result = healthy("h100-sxm-8")
    assert sorted(result.bus.gpus) == sorted(str(gpu.pci) for gpu in result.gpus)
    assert (result.bus.silent, result.bus.drivers) == ([], ["nvidia"] * 8)
    assert [gpu.minor for gpu in result.gpus] == [*range(8)]
    for gpu in result.gpus:
        assert sorted(link for group in gpu.links for link in group.links) == list(range(18))
        links = {(g.state, g.p2p, g.remote_type, g.mbps, g.version) for g in gpu.links}
        assert links == {(1, 1, 2, 26562, 6)}
        assert gpu.switch_links == 18
        assert (gpu.fabric.state, gpu.fabric.status) == (3, 0)
        assert (gpu.temperature.tlimit_slowdown, gpu.temperature.tlimit_shutdown) == (-2, -8)
        assert (gpu.architecture, gpu.persistence, gpu.counters.sync_boost_ns) == (9, 1, 0)
        assert gpu.power.average_mw == pytest.approx(72_020, rel=0.1)
        assert isinstance(gpu.temperature.gpu_max, Unavailable)


@pytest.mark.parametrize(
    ("profile", "mode"), [("h100-sxm-8", 0), ("a100-sxm-8", 1), ("pcie-phb-2", 2), ("rtx3090-nv4-2", 3)]
)
def test_the_virtualization_mode_is_read(probe: On, profile: str, mode: int) -> None:
    """Bare metal, passed through, a vGPU, a vGPU host: NVML's nvmlGpuVirtualizationMode_t, on every GPU."""
    machine = profiles.load(profile)
    result = probe(replace(machine, model=replace(machine.model, virtualization=mode))).result()
    assert {gpu.virtualization for gpu in result.gpus} == {mode}


def test_an_old_driver_is_asked_by_its_old_names(healthy: Healthy) -> None:
    """418 has no T.Limit, MIG, memory affinity, rows, repairs or recovery action: reasons, and no zeros."""
    gpu = healthy("dgx1-v100-8").gpus[0]
    assert gpu.mig == gpu.memory_nodes == gpu.temperature.margin == gpu.fabric.state == TOO_OLD
    assert gpu.repair.rows_failed == gpu.repair.unrepairable == gpu.ecc.sram_threshold == TOO_OLD
    assert isinstance(gpu.repair.action, Unavailable)
    assert gpu.pcie.card_generation == TOO_OLD
    read = (gpu.temperature.gpu, gpu.events.read, gpu.pcie.replays, gpu.link_errors.replay)
    assert all(isinstance(value, int) for value in read)
    assert (gpu.cpus, gpu.memory_mib) == ("0-19,40-59", 16130)


def test_gpus_of_another_driver_are_on_the_bus_with_its_name(healthy: Healthy) -> None:
    result = healthy("titan-rtx-vfio-4")
    assert result.bus.gpus == ["0000:08:00.0", "0000:0a:00.0", "0000:41:00.0", "0000:42:00.0"]
    assert result.bus.drivers == ["nvidia", "nouveau", "nvidia", "vfio-pci"]
    codes = [finding.code for finding in judge_health(result).findings]
    assert [code for code in codes if code != "clock-unsynchronised"] == ["foreign-gpus"], "the clock is real"


Reading = Callable[[Gpu], Any]
MARKS: dict[str, list[tuple[str, dict[str, Any], Reading, Any, Any]]] = {
    "h100-sxm-8": [
        ("row-remap", {"state": "pending"}, lambda g: g.repair.rows_pending, 1, 0),
        ("ecc-uncorrectable", {"count": 3}, lambda g: g.ecc.volatile_uncorrected, 3, 0),
        ("pcie-width-halved", {}, lambda g: g.pcie.width, 8, 16),
        ("hot", {"celsius": 91}, lambda g: g.temperature.gpu, 91, 33),
        ("hot-memory", {"celsius": 97}, lambda g: g.window.memory_temperature.max, 97, 41),
        ("undersized-power-source", {}, lambda g: g.power.source, 2, 0),
    ],
    "h100-sxm-8-drv580": [
        ("repair-pending", {"kind": "tpc"}, lambda g: g.repair.tpcs_pending, 1, 0),
        ("recovery-action", {"action": 2}, lambda g: g.repair.action, 2, 0),
        ("sram-threshold", {}, lambda g: g.ecc.sram_threshold, 1, 0),
    ],
    "dgx1-v100-8": [
        ("page-pending", {}, lambda g: (g.repair.pages_pending, g.repair.pages_double_bit), (1, 1), (0, 0))
    ],
    "rtx3090-nv4-2": [("fan-stopped", {}, lambda g: g.fans[0].rpm == 0, True, False)],
    "pcie-phb-2": [("compute-mode", {"mode": "prohibited"}, lambda g: g.compute_mode, 2, 0)],
    "titan-rtx-nv2": [
        (
            "application-clocks",
            {"percent": 50},
            lambda g: (
                g.clocks.app_sm_mhz < g.clocks.max_sm_mhz,
                g.clocks.app_memory_mhz == g.clocks.max_memory_mhz,
            ),
            (True, True),
            (False, True),
        )
    ],
}
"""Per machine: fault, parameters, reading, its value on the faulty GPU, and its healthy value."""


@pytest.mark.parametrize("profile", MARKS)
def test_each_fault_shows_on_its_gpu_alone(probe: On, profile: str) -> None:
    on = probe(profile)
    for index, (fault, parameters, *_) in enumerate(MARKS[profile]):
        on.hardware.fault(fault, gpu=index, **parameters)
    gpus = on.result().gpus
    for index, (fault, _, reading, faulty, healthy) in enumerate(MARKS[profile]):
        expected = [faulty if gpu.index == index else healthy for gpu in gpus]
        assert [reading(gpu) for gpu in gpus] == expected, fault


def test_an_xid_in_the_window_is_heard_by_its_gpu(probe: On) -> None:
    on = probe("h100-sxm-8")
    on.hardware.fault("xid", gpu=5, number=74)
    result = on.result("--window", "0.6")
    assert [gpu.xids.seen for gpu in result.gpus] == [[]] * 5 + [[74]] + [[]] * 2
    assert all(gpu.xids.registered is True for gpu in result.gpus)
    on.hardware.heal()
    assert all((gpu.xids.registered, gpu.xids.seen) == (True, []) for gpu in on.result().gpus)


def test_work_shows_as_energy_and_at_the_pcie_link(probe: On) -> None:
    on = probe("rtx4000ada-1")
    idle = on.result().gpus[0]
    on.hardware.load(100)
    busy = on.result("--window", "0.6").gpus[0]
    assert (idle.pcie.utilization, busy.pcie.utilization) == (0, 100)
    assert idle.pcie.generation < busy.pcie.generation == busy.pcie.max_generation
    watts, growth = busy.power.instant_mw / 1000, busy.window.growth
    assert 0.8 * watts * 550 <= growth.energy_mj <= 1.2 * watts * growth.elapsed_ms


@pytest.mark.parametrize("fault", ["gpu-lost", "insufficient-power"])
def test_a_gpu_that_is_ill_keeps_its_place(probe: On, fault: str) -> None:
    on = probe("h100-sxm-8")
    on.hardware.fault(fault, gpu=3)
    result = on.result()
    assert result.problem is None
    errors = [gpu.error.kind if gpu.error else None for gpu in result.gpus]
    assert errors == [None] * 3 + [fault] + [None] * 4
    address = profiles.load("h100-sxm-8").gpus[3].address
    assert address in result.bus.gpus
    assert result.bus.silent == ([address] if fault == "gpu-lost" else [])
    assert replace(result.gpus[3], error=None) == Gpu(index=3), "nothing else is known of it"
    assert all(isinstance(gpu.power.usage_mw, int) for gpu in result.gpus if gpu.index != 3)


@pytest.mark.parametrize("has_log", [True, False])
def test_a_driver_that_does_not_fit_is_a_problem_of_the_node(probe: On, has_log: bool) -> None:
    """The kernel's log, which is read though NVML cannot be, says why; one that is not there is said."""
    on = probe("titan-rtx-nv2")
    on.hardware.fault("driver-mismatch")
    log = on.folder / "kern.log"
    if has_log:
        log.write_text("n kernel: [    1.5] NVRM: GPU 0000:09:00.0: RmInitAdapter failed! (0x26:0x56:1474)\n")
    result = on.result("--kernel-log", str(log))
    assert (result.problem.kind, result.problem.code, result.gpus) == ("driver-mismatch", 18, [])
    assert "reboot" in result.problem.message
    assert isinstance(result.host.boot_id, str)
    assert len(result.bus.gpus) == 2, "the bus shows them without the driver"
    assert [event.kind for event in result.kernel_log.events] == ["init-failed"] * has_log
    assert result.kernel_log.unread == ("" if has_log else "No such file or directory")


def test_a_call_that_never_returns_is_named(probe: On) -> None:
    on = probe("h100-sxm-8")
    on.hardware.fault("hung-call", call="nvmlDeviceGetPowerUsage", gpu=2)
    result = on.result("--deadline", "6")
    assert (result.problem.kind, result.problem.call) == ("call-hung", "nvmlDeviceGetPowerUsage")
    assert "GPU 2" in result.problem.message
    assert table_cells(render_matrix(result))[1][2] == "NV18"
    assert isinstance(result.gpus[1].power.usage_mw, int)
    assert result.gpus[2].power.usage_mw == Unavailable("not read")


def test_a_sensor_that_hangs_does_not_hang_the_probe(probe: On) -> None:
    """A pipe that nobody writes to stands for a dead sensor: all that was read before is there."""
    on = probe("titan-rtx-nv2")
    chip = Path(on.env()["NODEGAUGE_SYSFS"]) / "class/hwmon/hwmon9"
    chip.mkdir(parents=True)
    (chip / "name").write_text("psu\n")
    (chip / "power1_input").write_text("7\n")
    os.mkfifo(chip / "in1_input")
    result = on.result()
    assert result.problem is None
    assert result.omitted == ["sensors"]
    assert [sensor.value for sensor in result.sensors] == [7]
    assert all(gpu.window is not None for gpu in result.gpus)


FAILED = Unavailable("NVML_ERROR_UNKNOWN")


def without(result: Result, position: int, path: str) -> Result:
    member, _, leaf = path.partition(".")
    value: Any = replace(getattr(result.gpus[position], member), **{leaf: FAILED}) if leaf else FAILED
    return with_gpu(result, position, **{member: value})


@pytest.mark.slow
@pytest.mark.parametrize("profile", profiles.names())
def test_a_machine_passes_only_with_every_answer(healthy: Callable[[str], Result], profile: str) -> None:
    """Neither on a machine that was read before, nor on a new one whose siblings have the value; each value
    of another GPU, and of yet another on the next machine: a machine's GPUs are alike."""
    result = healthy(profile)
    before = judge_health(result)
    if before.verdict is not Verdict.PASS:
        pytest.skip(f"does not pass: {before.summary}")
    assert before.coverage.gaps == []
    histories = [before.history] + [History()] * (len(result.gpus) > 1)
    missed = []
    for number, path in enumerate(VALUES, start=profiles.names().index(profile)):
        position = number % len(result.gpus)
        if not isinstance(reduce(getattr, path.split("."), result.gpus[position]), Unavailable):
            failed = without(result, position, path)
            verdicts = {judge_health(failed, history=history).verdict for history in histories}
            missed += [f"GPU {position}: {path}"] if Verdict.PASS in verdicts else []
    assert missed == []
