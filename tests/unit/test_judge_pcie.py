"""PCIe links by width, generation and errors; network ports, of which what should be up is inferred."""

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Pcie, Problem, Result, Unavailable
from nodegauge_judge import Answer, History, Judgement, Thresholds
from nodegauge_judge.history.model import PortHistory
from support.judge_results import Row, Table, check, codes, judge, rows

BAD, GOOD, UNSURE = Answer.BAD, Answer.GOOD, Answer.UNSURE

FULL = {"max_generation": 4, "max_width": 16, "card_generation": 4}


def link(generation: int = 4, width: int = 16, *, utilization: int = 97, **more: int) -> Pcie:
    known = FULL | {"replays": 0, "correctable": 0} | more
    return Pcie(generation=generation, width=width, utilization=utilization, **known)


def node(*links: Pcie) -> Result:
    result = made.hgx_a100_4()
    for gpu_index in range(4):
        result = made.with_gpu(result, gpu_index, pcie=links[min(gpu_index, len(links) - 1)])
    return result


def grown(counter: str, count: int) -> tuple[Result, Result]:
    before, now = (node(link(**{counter: n}), link(**{counter: 70_000})) for n in (70_000, 70_000 + count))
    return before, made.later(now)


IDLE = {"utilization": 0, "generation": 1}
OTHER_MODEL = made.with_gpu(node(link(width=2), link(utilization=0)), 1, pcie=link(), name="NVIDIA A10")
NO_MEMORY = {"pcie": link(1, 1), "memory_mib": Unavailable("nvmlDeviceGetMemoryInfo: NOT_SUPPORTED")}
OLD = node(link(replays=70_000))
LINKS: Table = {
    "a link that gives all of it": [(node(link()), "", {"pcie-narrow": GOOD})],
    "half the lanes warn, and leave the gate open": [
        (node(link(width=8), link()), "pcie-narrow/warn", {"pcie-narrow": UNSURE})
    ],
    "less than half of the others' lanes fail": [
        (
            node(link(width=4), link()),
            "pcie-narrow/fail",
            {"pcie-narrow": BAD},
            "GPU 0 (0000:0f:00.0): Generation 4 x4 at 97 % utilisation; card and slot support 4 x16",
            "the node's other GPUs have x16",
            {"width": 4, "utilization_percent": 97},
        )
    ],
    "a lower generation warns at half of the utilisation": [
        (node(link(3, utilization=50), link()), "pcie-narrow/warn"),
        (node(link(1, utilization=49), link()), ""),
    ],
    "what was not read has no opinion": [
        (node(Pcie(generation=1, width=16, **FULL), link()), ""),
        (node(Pcie(generation=4, width=4, utilization=99), link()), ""),
        (node(Pcie(utilization=99), link()), "", {"pcie-narrow": UNSURE}),
        (node(link(0, 0), link()), ""),
    ],
    "an idle link keeps its lanes (janhq/jan issue 183)": [
        (node(link(width=8, **IDLE), link(**IDLE)), "pcie-narrow/warn"),
        (node(link(width=4, **IDLE)), "pcie-narrow/warn"),
        (node(link(width=0, **IDLE), link(**IDLE)), ""),
    ],
    "half of the lanes everywhere is how the board was built": [
        (node(link(width=8, **IDLE)), "pcie-narrow/info"),
        (node(link(3, width=8)), "pcie-narrow/warn"),
    ],
    "a card or slot with few lanes is complete": [(node(link(width=8, max_width=8, **IDLE)), "")],
    "an older slot is only mentioned": (
        node(link(3, max_generation=3)),
        "pcie-narrow/info",
        "The card supports generation 4, its slot only 3.",
    ),
    "a single idle GPU has no sibling that shows how the board was built": (
        made.with_gpu(made.h100(1), 0, pcie=link(width=8, **IDLE)),
        "pcie-narrow/warn",
        "x8 of x16 that card and slot support",
        {"pcie-narrow": Answer.NO_LOAD},
    ),
    "GB10 is part of the processor and reports 1 x1 (Syllo/nvtop pull request 499)": [
        (made.with_gpu(node(link()), 0, **NO_MEMORY), "")
    ],
    "few lanes fail only beside busy GPUs of the same model": [
        (node(link(width=2), link(utilization=0)), "pcie-narrow/warn"),
        (OTHER_MODEL, "pcie-narrow/warn mixed-gpus/info"),
    ],
    "the policy sets the share of the width": [
        (judge(node(link(width=8), link()), thresholds=Thresholds(pcie_width_ratio=0.6)), "pcie-narrow/fail")
    ],
    "errors have no growth on a first run and after a reboot": [
        (OLD, ""),
        ((OLD, made.rebooted(made.later(node(link(replays=90_000))))), ""),
    ],
    "100 errors an hour are 25 in 15 minutes, whatever was counted before": [
        (grown("replays", 0), ""),
        *((grown(counter, 25), "") for counter in ("replays", "correctable")),
        *(
            (grown(counter, 26), "pcie-errors/warn", "26 ", "104 an hour (warns above 100)")
            for counter in ("replays", "correctable")
        ),
    ],
}


@pytest.mark.parametrize("row", rows(LINKS))
def test_a_pcie_link_is_judged(row: Row) -> None:
    check(*row)


@pytest.mark.parametrize(
    ("address", "width", "expected"),
    [
        ("0000:00:1e.0", 8, ["pcie-narrow/info"]),
        ("0001:00:00.0", 8, ["pcie-narrow/info"]),
        ("0000:00:1e.0", 4, ["pcie-narrow/warn"]),
        ("0000:3b:00.0", 8, ["pcie-narrow/warn"]),
    ],
)
def test_a_virtual_machine_may_hide_half_of_the_lanes(address: str, width: int, expected: list[str]) -> None:
    """An idle T4 of AWS g4dn; on bare metal a GPU always sits below a port, not the host bridge."""
    t4 = made.with_gpu(made.h100(1), 0, pci=address, name="Tesla T4", pcie=link(1, width, utilization=0))
    assert [code for code in codes(judge(t4)) if "pcie" in code] == expected
    passed_through = made.with_gpu(t4, 0, pci="0000:3b:00.0", virtualization=1)
    assert ("pcie-narrow/warn" in codes(judge(passed_through))) == (width < 8)


def test_load_on_one_gpu_does_not_heal_another() -> None:
    bad = node(link(width=4), link())
    for links, answer in (
        ([link(utilization=0)], Answer.NO_LOAD),
        ([link(utilization=0), link()], Answer.NO_LOAD),
        ([link()], GOOD),
    ):
        assert judge(bad, made.later(node(*links))).answers["pcie-narrow"] is answer


UP, DOWN = "ACTIVE", "DOWN"


def rdma(*states: str, **port: object) -> Result:
    return made.with_ports(made.phb(), *states, **port)


def after(*results: Result) -> Judgement:
    return judge(*(made.later(result, seconds=900 * number) for number, result in enumerate(results)))


def rated(*rates: int) -> Result:
    result = rdma(*[UP] * len(rates))
    for number, rate in enumerate(rates):
        result = made.with_port(result, number, rate_gbps=rate)
    return result


OFF = made.with_port(rdma(UP), 0, state=DOWN, physical="Disabled")
UNREAD = made.with_port(rdma(UP), 0, state=Unavailable("EINVAL"))
NO_MANAGER = made.with_port(rdma(UP), 0, state="INIT", physical="LinkUp")
ERRORS = rdma(UP, symbol_errors=5000)
SLOW_ALONE = made.with_port(rdma(UP, DOWN, DOWN, DOWN, rate_gbps=400), 0, rate_gbps=100)
GONE = rdma(DOWN, link_downed=Unavailable("no such file"))
SPARE = rdma(UP, UP, UP, DOWN)
SLOW = rdma(UP, rate_gbps=200)
FORGOTTEN = ("nic-slow/warn", "200 Gb/s; earlier runs saw 400 Gb/s.")
ONE_IS_SLOW = ("nic-slow/warn", "100 Gb/s; ", {"rate_gbps": 100, "expected_gbps": 400})
NO_PORTS = replace(rdma(), nics=replace(rdma(UP).nics, ports=[]))
LATE = [replace(NO_PORTS, omitted=[part]) for part in ("nics.ports", "nics")]
CUT_LOST = replace(
    made.with_gpu(made.phb(), 0, error=Problem(kind="gpu-lost", call="x", message="lost")),
    problem=Problem(kind="call-hung", call="x", message="hung"),
)
TWO = rdma(UP, UP, link_downed=3)
PORTS: Table = {
    "a port that was up before warns as long as it is down": [
        (results, "nic-down/warn", "port mlx5_0/1: DOWN; it was up before.")
        for results in ((rdma(UP), GONE), (rdma(UP), GONE, GONE, GONE))
    ],
    "a port that came back is fine until it is down again": [
        ((rdma(UP), rdma(DOWN), rdma(UP)), ""),
        ((rdma(UP), rdma(DOWN), rdma(UP), rdma(DOWN)), "nic-down/warn"),
    ],
    "a port that was switched off is only mentioned": [((rdma(UP), OFF), "nic-down/info")],
    "an unreadable state accuses nobody": [((rdma(UP), UNREAD), "")],
    "a port without a subnet manager carries nothing": [
        ((rdma(UP), NO_MANAGER), "nic-down/warn", "INIT, LinkUp; it was up before.")
    ],
    "ports that are down set no rate": [((SLOW_ALONE,), "")],
    "errors count over one interval only": [
        ((ERRORS, rdma(UP, symbol_errors=40)), ""),
        ((rdma(UP), ERRORS), "nic-slow/warn"),
        ((rdma(UP), rdma(DOWN), ERRORS), ""),
    ],
    "100 errors an hour are 25 in 15 minutes": [
        ((ERRORS,), ""),
        ((ERRORS, rdma(UP, symbol_errors=5025)), ""),
        *(
            (
                (rdma(UP, **{name: 5000}), rdma(UP, **{name: 5026})),
                "nic-slow/warn",
                "26 errors in 900 s since the last run: 104 an hour",
            )
            for name in ("symbol_errors", "receive_errors")
        ),
    ],
    "counters with limits of their own warn above them, and not at them": [
        (
            tuple(rdma(UP, **{name: n}) for n in (7, 7 + most + over)),
            "nic-slow/warn" * over,
            *[message] * over,
        )
        for name, most, message in (
            ("integrity_errors", 0, "Within 900 s since the last run: 1 errors beyond the port's own limit"),
            ("overruns", 0, "1 packets without a buffer"),
            ("receiver_not_ready", 0, "1 sends without room"),
            ("recoveries", 75, "76 recoveries"),
            ("ack_timeouts", 900, "901 packets without an acknowledgement"),
            ("discards", 90_000, "90001 packets thrown away"),
        )
        for over in (0, 1)
    ],
    "a counter that was not there, or went back, has not grown": [
        ((rdma(UP), rdma(UP, overruns=5)), ""),
        ((rdma(UP, overruns=5), rdma(UP, overruns=1)), ""),
    ],
    "the kernel counts lost links since its driver was loaded": (
        (rdma(DOWN, link_downed=2),),
        "nic-down/warn",
        "it lost its link 2 times since its driver was loaded",
        {"link_downed": 2},
    ),
    "the only port of its kind that is down warns once": [
        ((SPARE,), "nic-down/warn"),
        ((SPARE, SPARE), "nic-down/info", "no run ever saw it up: a spare, or without a cable"),
    ],
    "few siblings prove nothing, for spares are common": [
        ((result,), "")
        for result in (
            *(rdma(DOWN), rdma(UP, DOWN), rdma(UP, UP, DOWN), rdma(UP, UP, UP, DOWN, DOWN)),
            *(rdma(UP, UP, UP, UP), made.phb()),
        )
    ],
    "a port below three of its kind that agree warns": [
        ((rated(400, 400, 400, 100),), *ONE_IS_SLOW),
        ((rated(100, 400, 400, 400, 400),), *ONE_IS_SLOW),
    ],
    "a faster port is no measure, nor are ports that disagree": [
        ((rated(*rates),), "")
        for rates in (
            *((400, 400, 400, 400), (400, 400, 100), (400, 400, 200, 200), (400, 200, 100, 50)),
            (100, 100, 100, 400),
        )
    ],
    "a lower rate does not become the usual one until it is forgotten": [
        ((rdma(UP), SLOW, SLOW, SLOW), *FORGOTTEN),
        ((SLOW, rdma(UP), SLOW), *FORGOTTEN),
        ((SLOW, rdma(UP), rdma(UP)), ""),
    ],
    "ports that were still being read are not forgotten": [
        ((rdma(UP), late, rdma(DOWN)), "nic-down/warn") for late in LATE
    ],
    "ports outlive a run that was cut off": [
        ((rdma(UP), CUT_LOST, rdma(DOWN)), "nic-down/warn"),
        ((rdma(UP), *map(made.rebooted, (replace(CUT_LOST, problem=None), rdma(DOWN)))), "nic-down/warn"),
    ],
    "a port that lost its link and came back warns": [
        (
            (TWO, made.with_port(TWO, 1, link_downed=now)),
            "nic-down/warn",
            f"port mlx5_1/1: Lost its link {times} since the last run and came back.",
        )
        for now, times in ((4, "once"), (6, "3 times"))
    ],
    "lost links are told for the last interval, in the same boot, while it was up, and of one counter": [
        ((TWO, *[made.with_port(TWO, 1, link_downed=4)] * 2), ""),
        ((rdma(UP, link_downed=9),), ""),
        ((rdma(UP), made.rebooted(rdma(UP, link_downed=9))), ""),
        ((rdma(UP), rdma(DOWN, link_downed=1), rdma(UP, link_downed=1)), ""),
        ((rdma(UP, link_downed=9), rdma(UP, link_downed=1)), ""),
    ],
}


@pytest.mark.parametrize("row", rows(PORTS))
def test_a_port_is_judged(row: Row) -> None:
    results, expected, *facts = row
    check(after(*results), expected, *facts)


@pytest.mark.parametrize(
    "other", [{"pci": "0000:83:00.1"}, {"link_layer": "Ethernet"}, {"port": 2}, {"to_gpu": ["SYS", "SYS"]}]
)
def test_a_port_of_another_kind_is_no_sibling(other: dict[str, object]) -> None:
    result = made.with_ports(made.hgx_a100_4(), UP, UP, UP, DOWN)
    nics = result.nics
    port = {name: value for name, value in other.items() if name in ("link_layer", "port")}
    nics = replace(
        nics,
        ports=[*nics.ports[:3], replace(nics.ports[3], **port)],
        pci=[*nics.pci[:3], str(other.get("pci", nics.pci[3]))],
        to_gpu=[*nics.to_gpu[:3], other.get("to_gpu", nics.to_gpu[3])],
    )
    check(result, "nic-down/warn")
    check(replace(result, nics=nics), "")


def test_ports_survive_a_report_and_a_new_version() -> None:
    ports = {"mlx5_0/1": PortHistory(7, 25), "mlx 5/2": PortHistory(None, 0), "a,b/1": PortHistory(1, 1)}
    kept = History.decode(History(boot="b", ports=ports).encode())
    assert kept.ports == {"mlx5_0/1": PortHistory(7, 25), "mlx 5/2": PortHistory(None, 0)}
    # as earlier versions wrote them
    assert PortHistory.unpacked("7.25") == PortHistory(7, 2 * 64 + 5)
    assert PortHistory.unpacked("7.25.3").downs == 3
    with pytest.raises(ValueError, match="more than a port has"):
        PortHistory.unpacked("7.25.3.1.1.1.1.1.1.1")
