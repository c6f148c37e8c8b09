"""Links and pairs as the driver is asked for them, and the sampling window, with drivers of Python."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from nodegauge_contract import Int, LinkGroup, ReasonSeen, Span, Unavailable
from nodegauge_probes.collectors import sampling, topology
from nodegauge_probes.nvml.library import NO_SUCH_CALL, NO_SUCH_LINK, Device, Nvml
from nodegauge_probes.result_builder import GpuBuilder, ResultBuilder, empty_pairs, group_links

NO = Unavailable("NVML_ERROR_NOT_SUPPORTED")
Answer = int | Unavailable


class Driver:
    def __init__(
        self, *, calls: dict[str, Callable[[int], Answer]], fields: dict[Any, Answer] | None = None
    ) -> None:
        self.calls = calls
        self.values = fields or {}

    def integer(self, device: Device, call: str, link: int, *arguments: Any) -> Answer:
        return self.calls.get(call, lambda link: NO)(link)

    def fields(self, device: Device, *fields: Any) -> list[Answer]:
        return [self.values.get(field, NO) for field in fields]

    def whole_field(self, device: Device, *fields: Any) -> Answer:
        known = [self.values[field] for field in fields if field in self.values]
        return known[0] if known else NO

    def remote_pci(self, device: Device, link: int) -> str:
        return f"0000:0{link}:00.0"

    def pair(self, one: Device, other: Device, call: str, *arguments: int) -> Answer:
        return one.index * 100 + other.index * 10 + sum(arguments)


def links(driver: Driver, *, capability: str = "8.0") -> list[LinkGroup]:
    gpu = GpuBuilder(0)
    gpu.identity.compute_capability = capability
    topology.links(cast(Nvml, driver), Device(0, None), gpu)
    return group_links(gpu.links)


def up_to(count: int, value: Answer) -> Callable[[int], Answer]:
    return lambda link: value if link < count else NO_SUCH_LINK


STATE, CAPABILITY = "nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkCapability"


def test_asking_stops_where_there_is_no_such_link() -> None:
    """INVALID_ARGUMENT is the end, whichever of the two calls says it first."""
    both = Driver(calls={STATE: up_to(12, 0), CAPABILITY: up_to(12, 1)})
    state_only = Driver(calls={STATE: up_to(12, 0), CAPABILITY: lambda link: NO})
    for driver in (both, state_only):
        assert [group.links for group in links(driver)] == [list(range(12))]


@pytest.mark.parametrize(("capability", "state"), [("8.9", 1), ("9.0", 0), ("10.0", 0)])
def test_from_hopper_on_the_state_is_a_field(capability: str, state: int) -> None:
    """nvmlDeviceGetNvLinkState says 1 here and field 165 says 0: the GPU decides whom to believe."""
    driver = Driver(calls={STATE: up_to(1, 1), CAPABILITY: up_to(1, 1)}, fields={(165, 0): 0})
    assert links(driver, capability=capability)[0].state == state


@pytest.mark.parametrize(
    ("fields", "mbps"),
    [
        ({(164, 0): 26562, 84: 25781, 90: 20000}, 26562),
        ({84: 25781, 90: 20000}, 25781),
        ({90: 20000}, 20000),
        ({}, NO),
    ],
)
def test_the_rate_is_the_links_own_where_there_is_one(fields: dict[Any, Answer], mbps: Answer) -> None:
    driver = Driver(calls={STATE: up_to(1, 1), CAPABILITY: up_to(1, 1)}, fields=fields)
    assert links(driver)[0].mbps == mbps


@pytest.mark.parametrize("refusal", [NO_SUCH_LINK, NO])
def test_a_capability_alone_is_no_link(refusal: Unavailable) -> None:
    """A real B200 calls all 36 numbers capable (NVIDIA/TensorRT-LLM pull request 19210)."""
    states: dict[Any, Answer] = {(165, link): 1 if link < 18 else refusal for link in range(36)}
    driver = Driver(calls={CAPABILITY: up_to(36, 1), STATE: up_to(18, 1)}, fields=states)
    assert [group.links for group in links(driver, capability="10.0")] == [[link] for link in range(18)]


@pytest.mark.parametrize(
    ("kind", "remote_type"), [("0x068000", 2), ("0x068001", 1), ("0x030200", NO_SUCH_CALL)]
)
def test_the_pci_tree_tells_the_type_of_a_remote_end(tmp_path: Path, kind: str, remote_type: Answer) -> None:
    """Before driver 470 there is no call for it: an NVSwitch is a bridge of its own class."""
    (tmp_path / "bus/pci/devices/0000:07:00.0").mkdir(parents=True)
    (tmp_path / "bus/pci/devices/0000:07:00.0/class").write_text(f"{kind}\n")
    gpu = GpuBuilder(0)
    gpu.links = [
        LinkGroup(links=[0], remote="0000:07:00.0", remote_type=NO_SUCH_CALL),
        LinkGroup(links=[1], remote="0000:07:00.0", remote_type=0),
        LinkGroup(links=[2], remote="", remote_type=NO_SUCH_CALL),
        LinkGroup(links=[3], remote="0000:99:00.0", remote_type=NO_SUCH_CALL),
    ]
    topology.add_remote_types(gpu, tmp_path)
    types = [link.remote_type for link in gpu.links]
    assert types == [remote_type, 0, NO_SUCH_CALL, NO_SUCH_CALL]


@pytest.mark.parametrize(
    ("state", "remote"), [(0, topology.NOT_UP), (2, "0000:00:00.0"), (3, "0000:00:00.0")]
)
def test_only_a_link_that_is_down_is_not_asked_where_it_leads(state: int, remote: object) -> None:
    """Asleep, or trained with traffic disabled: the far end is known, and who judges wants to know it."""
    group = links(Driver(calls={STATE: up_to(1, state), CAPABILITY: up_to(1, 1)}))[0]
    assert (group.state, group.remote) == (state, remote)
    assert (group.remote_type == group.mbps == group.version == topology.NOT_UP) is (state == 0)


def test_a_driver_without_the_calls_is_asked_once() -> None:
    missing = Driver(calls={STATE: lambda link: NO_SUCH_CALL, CAPABILITY: lambda link: NO_SUCH_CALL})
    assert [group.links for group in links(missing)] == [[0]]


def test_pairs_are_asked_in_both_directions() -> None:
    builder = ResultBuilder(probe="health", run="", node="")
    builder.pairs = empty_pairs(2)
    topology.pairs(cast(Nvml, Driver(calls={})), [Device(0, None), Device(1, None)], builder)
    pairs = builder.build(duration_ms=0).pairs
    assert pairs.ancestor == [[-1, 10], [100, -1]]
    assert pairs.read == [[-1, 10], [100, -1]]
    assert pairs.write == [[-1, 11], [101, -1]]
    assert pairs.nvlink == [[-1, 12], [102, -1]]


LATE = Unavailable("NVML_ERROR_TIMEOUT")


class Clock:
    def __init__(self, *, per_gpu: float) -> None:
        self.now = 100.0
        self.per_gpu = per_gpu

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Telemetry:
    def __init__(self, clock: Clock, *, number: int) -> None:
        self.clock, self.number = clock, number

    def integer(self, device: Device, call: str, *arguments: Any, **options: Any) -> int:
        if call == "nvmlDeviceGetUtilizationRates":
            self.clock.now += self.clock.per_gpu
        return self.number

    def whole_field(self, device: Device, *fields: int) -> int:
        return 5


def sampled(**values: Int) -> sampling.Sample:
    return sampling.Sample(**{**dict.fromkeys(sampling.Sample.__struct_fields__, LATE), **values})


def watched(*, per_sample: float = 0.001, reasons: int = 5, **how: Any) -> GpuBuilder:
    """The first of two GPUs after a window."""
    clock, gpus = Clock(per_gpu=per_sample / 2), [(Device(n, None), GpuBuilder(n)) for n in range(2)]
    nvml = cast(Nvml, Telemetry(clock, number=reasons))
    sampling.watch(nvml, gpus, clock=clock, sleep=clock.sleep, **how)
    return gpus[0][1]


@pytest.mark.parametrize(
    ("seconds", "hz", "samples"), [(3, 4, 13), (2, 4, 9), (0.5, 10, 6), (0, 4, 1), (0.1, 4, 1)]
)
def test_a_window_has_samples_at_both_ends(seconds: float, hz: float, samples: int) -> None:
    window = watched(seconds=seconds, hz=hz).window
    assert window.samples == samples
    assert window.seconds == pytest.approx((samples - 1) / hz, abs=0.05)


@pytest.mark.parametrize("bit", sampling.SLOWDOWN)
def test_a_window_is_longer_while_a_gpu_is_slowed_down(bit: int) -> None:
    wanted = {bit: (13, 5), 0x4 | 0x1: (5, 5)}
    for reasons, samples in wanted.items():
        for slowed, count in zip((3.0, 0.5), samples, strict=True):
            window = watched(seconds=1, hz=4, slowed_seconds=slowed, reasons=reasons).window
            assert window.samples == count


def test_a_slow_driver_gives_fewer_samples_and_no_longer_window() -> None:
    window = watched(seconds=3, hz=4, per_sample=0.6).window
    assert window.samples < 13
    assert window.seconds < 4


def test_bits_are_counted_with_their_longest_row() -> None:
    seen = sampling.reasons_seen([0x1, 0x5, 0x4, LATE, 0x4, 0x4, 0x4, 0x0])
    assert seen == [ReasonSeen(bit=1, samples=2, longest=2), ReasonSeen(bit=4, samples=5, longest=3)]


@pytest.mark.parametrize(
    ("values", "span"),
    [
        ([3, 1, 2], Span(min=1, median=2, max=3)),
        ([4, 1], Span(min=1, median=2.5, max=4)),
        ([LATE, 7], Span(min=7, median=7, max=7)),
        ([LATE], None),
        ([], None),
    ],
)
def test_a_span_is_of_what_could_be_read(values: list[int], span: Span | None) -> None:
    assert sampling.span(values) == span


def test_a_window_without_a_readable_mask_says_why() -> None:
    gpu = GpuBuilder(0)
    sampling.fill(gpu, [sampled(), sampled()], seconds=1)
    assert (gpu.events.value.read, gpu.events.value.seen) == (LATE, [])
    assert gpu.window.utilization is None


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ([(5, 1, 16), (97, 4, 16), (40, 3, 16)], (4, 16, 97)),
        ([(90, 1, 16), (90, 4, 8), (90, 4, 16)], (4, 16, 90)),
        ([(LATE, 1, 16), (0, 3, LATE)], (3, LATE, 0)),
        ([(LATE, 1, 8), (LATE, LATE, 16)], (1, 8, LATE)),
    ],
)
def test_the_busiest_sample_gives_the_pcie_link(
    readings: list[tuple[Int, Int, Int]], expected: tuple[Int, Int, Int]
) -> None:
    gpu = GpuBuilder(0)
    samples = [sampled(utilization=busy, generation=speed, width=lanes) for busy, speed, lanes in readings]
    sampling.fill(gpu, samples, seconds=1)
    pcie = gpu.pcie.value
    assert (pcie.generation, pcie.width, pcie.utilization) == expected


def test_something_may_be_done_between_samples() -> None:
    done: list[int] = []
    watched(seconds=1, hz=4, between=lambda: done.append(1))
    assert len(done) == 5
