"""What pasted text states in words: kernel logs, failure messages, links, results of other tests."""

import json
import re
from pathlib import Path

import pytest
import yaml

from corpus.__main__ import HERE as CORPUS
from corpus.__main__ import RIGHT, WRONG, every
from nodegauge_contract.paste import StatementKind
from nodegauge_judge.rules.failure_catalogue import FAILURES, LINK_ERRORS
from support.judge_command import FIXTURES, flat, judge

XID = "NVRM: Xid (PCI:0000:3b:00): {}, pid=1234, name=python, {}"
OFF_THE_BUS = XID.format(79, "GPU has fallen off the bus.")
QUERY = (FIXTURES / "pasted/q_gh200_healthy-idle.txt").read_text()
DIAG_JSON = """WARNING: something else
{"DCGM Diagnostic": {"test_categories": [{"tests": [null, {"name": "memory", "results": [
 {"entity_id": 0, "status": "Pass"},
 {"gpu_ids": "5", "status": "%s", "warnings": [{"warning": "a DBE"}]}]}]}]}}
"""
GPUS = "".join(
    f"|   {n}  NVIDIA H100 80GB HBM3      On  |   00000000:{0x1B + n:02X}:00.0 Off |      {{ecc[{n}]:>8}} |\n"
    "| N/A   34C    P0             70W /  700W |       4MiB /  81559MiB |      0%      Default |\n"
    for n in range(3)
)
OTHER = "|      0%      Default |"
SMI = "| NVIDIA-SMI 550.90.07    Driver Version: 550.90.07    CUDA Version: 12.4     |\n" + GPUS
SOUND, ECC, BROKEN = (SMI.format(ecc=cells) for cells in ([0, 0, 0], [0, 14, 0], [0, "ERR!", 0]))
MATRIX = "\tGPU0\tGPU1\tGPU2\tGPU3\n" + "".join(
    f"GPU{i}\t" + "\t".join(" X " if i == j else "NV18" for j in range(4)) + "\n" for i in range(4)
)


def links(*gpus: str) -> str:
    """`nvidia-smi nvlink -s`: one letter a link, u for one that is up."""
    return "".join(
        f"GPU {n}: Tesla V100-SXM2-32GB (UUID: GPU-{n})\n"
        + "".join(
            f"\t Link {k}: {'25.781 GB/s' if up == 'u' else '<inactive>'}\n" for k, up in enumerate(states)
        )
        for n, states in enumerate(gpus)
    )


def burn(errors: str, *ends: str) -> str:
    rows = "".join(f"\tGPU {n}: {end}\n" for n, end in enumerate(ends))
    return (
        f"50.0%  proc'd: 80 - 81 (1784 Gflop/s - 1783 Gflop/s)   errors: {errors}  temps: 70 C - 71 C\n"
        + (f"Tested {len(ends)} GPUs:\n{rows}" if ends else "")
    )


def listed(kind: str) -> dict[str, tuple[str, ...]]:
    """Statements in words alone, by name: the text, the code of the finding, and what is named."""
    texts = yaml.safe_load(Path(__file__).with_name("statements.yaml").read_text("utf-8"))
    return {name: tuple(one.values()) for name, one in texts[kind].items()}


DRIVER, FABRIC = "driver-failure", "fabric-failure"
FAULTS: dict[str, tuple[str, ...]] = listed("faults") | {
    "ECC in CUDA": (
        "[rank3]: CUDA error: uncorrectable ECC error encountered",
        "program-failure",
        "rank3",
    ),
    "Xid": (OFF_THE_BUS, "xid", "GPU 0000:3b:00.0|Xid 79"),
    "ERR! for memory errors": (BROKEN, DRIVER, "GPU 1 (0000:1c:00.0)"),
    "ERR! for MIG": (SOUND.replace(OTHER, OTHER + "\n|      ERR! |", 1), DRIVER, "MIG mode"),
    "a value of -q": (re.sub(r"(GPU Current Temp +: ).*", r"\1GPU requires reset", QUERY), DRIVER, "dd:00"),
    "a link less than its sibling": (links("uuuuuu", "uuu-u-"), FABRIC, "links 3, 5 <inactive>|GPU 1"),
    "no link where a sibling has": (links("uu", "--"), FABRIC, "GPU 1"),
    "no link on a whole board": (
        "".join(f"GPU {n}: NVIDIA H200 (UUID: GPU-{n})\n\t Link 0: <inactive>\n" for n in range(8)),
        FABRIC,
        "8 GPUs: all <inactive>",
    ),
    "dcgmi diag -j": (DIAG_JSON % "FAIL", "test-failed", "GPU 5|a DBE"),
    "dcgmi diag -j of version 4": (
        DIAG_JSON.replace("{", '{"entity_groups": [{"entities": []}], ', 1) % "Fail",
        "test-failed",
        "GPU 5",
    ),
    "gpu-burn, cut": (burn("0 - 15 (WARNING!)"), "test-failed", "GPU 1"),
    "gpu-burn, died": (burn("-1 (DIED!) - 0"), "test-failed", "GPU 0"),
}
WARNINGS: dict[str, tuple[str, ...]] = listed("warnings") | {
    "a NIC": ("mlx5_core 0000:53:00.0 enp83s0f0np0: Link down", "machine-failure", "enp83s0f0np0"),
    "memory errors in the table": (ECC, "ecc", "GPU 1 (0000:1c:00.0)|14 uncorrectable"),
    "fewer GPUs than -L": (
        SOUND + "".join(f"GPU {n}: NVIDIA H100 80GB HBM3 (UUID: GPU-{n})\n" for n in range(4)),
        DRIVER,
        "lists 3 GPUs, `-L` 4",
    ),
    "fewer GPUs than the matrix": (SOUND + MATRIX, DRIVER, "lists 3 GPUs, `topo -m` 4"),
    **{
        f"{count} {counter} of the one GPU that is shown": (
            f"GPU 3: H100 (UUID: GPU-2)\n\t Link 7: {counter}: {count}\n",
            FABRIC,
            "GPU 3 Link 7",
        )
        for count, counter in (
            (1, "Replay Errors"),
            (2, "Link recovery failed events"),
            (LINK_ERRORS + 1, "CRC Errors"),
        )
    },
    "ERR! for a fan": (SOUND.replace("N/A   34C", "ERR!  34C", 1), DRIVER, "its fan"),
    "seven of eight": (
        "".join(f"GPU {n}: NVIDIA H200 (UUID: GPU-{n})\n" for n in range(7)),
        "board-incomplete",
        "7 of the 8",
    ),
}
CLEAN = {
    "an application's Xids": "\n".join(XID.format(code, "x") for code in (13, 31, 43, 45)),
    "no bridge on any card": links("--", "--"),
    "half the lanes of a NIC": (
        "01:00.0 3D controller: NVIDIA Corporation GA102\n02:00.0 Ethernet controller: Mellanox\n"
        "\tLnkSta: Speed 8GT/s, Width x8 (downgraded)\n"
    ),
    "some CRC errors": "GPU 0: H100 (UUID: GPU-2)\n\t Link 7: CRC Errors: 3\n",
    "a loop of --query-gpu": "index, name, ecc.errors.uncorrected.volatile.total\n0, A10, 0\n0, A10, 9\n",
}
ADDED = {
    "nothing": lambda text: text,
    "quoted": lambda text: re.sub(r"^", "> ", text, flags=re.MULTILINE),
    "mpirun": lambda text: re.sub(r"^", "[1,0]<stdout>:", text, flags=re.MULTILINE),
    "colours": lambda text: re.sub(r"^(.*)$", "\x1b[31m\\1\x1b[0m", text, flags=re.MULTILINE),
    "a prompt, time stamps": lambda text: re.sub(r"^", "2026-11-20T08:01:02Z ", text, flags=re.MULTILINE),
}


def assert_said(text: str, verdict: str, code: str, names: str) -> None:
    """The verdict, the finding, and every name, in text that helps without a cluster."""
    judgement = json.loads(judge("-", "--format", "json", stdin=text).output)
    assert judgement["verdict"] == verdict, judgement
    assert code in {each["code"] for each in judgement["findings"] if each["severity"] == verdict}
    shown = flat(judge("-", stdin=text))
    assert all(name in shown for name in names.split("|")[-2:]), shown
    assert "kubectl" not in shown


@pytest.mark.parametrize("add", ADDED.values(), ids=ADDED)
@pytest.mark.parametrize(("text", "code", "names"), FAULTS.values(), ids=FAULTS)
def test_a_failure_in_a_paste_fails_and_is_named(text: str, code: str, names: str, add) -> None:  # type: ignore[no-untyped-def]
    assert_said(add(text), "fail", code, names)


@pytest.mark.parametrize(("text", "code", "names"), WARNINGS.values(), ids=WARNINGS)
def test_a_warning_in_a_paste_warns(text: str, code: str, names: str) -> None:
    assert_said(text, "warn", code, names)


@pytest.mark.parametrize("text", CLEAN.values(), ids=CLEAN)
def test_a_paste_that_shows_no_health_is_unknown_and_accuses_nobody(text: str) -> None:
    judgement = json.loads(judge("-", "--format", "json", stdin=text).output)
    assert judgement["verdict"] == "unknown"
    assert {each["code"] for each in judgement["findings"] if each["severity"] != "info"} == {
        "paste-without-health"
    }


@pytest.mark.parametrize("text", [burn("0 - 0", "OK", "OK"), DIAG_JSON % "PASS"])
def test_a_test_that_passed_is_a_pass_that_says_what_it_covers(text: str) -> None:
    outcome = judge("-", stdin=text)
    assert outcome.exit_code == 0
    assert "These tests passed: " in flat(outcome)
    assert "does not cover: " in flat(outcome)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            "# gpu   pwr  gtemp  mtemp     sm    mem\n    0    70     34     40      0      0\n",
            "nvidia-smi dmon",
        ),
        ("nvbandwidth Version: v0.4\n", "nvbandwidth"),
        ("Link 0, P2P is supported: true\n", "nvlink -c"),
        ("root@a:~# dmesg | grep -i xid\nroot@a:~#\n", "a command without output"),
        ("NVRM: GPU0 nvAssertOkFailedNoLog: Assertion failed: x\n", "not known here"),
    ],
)
def test_what_is_known_and_not_judged_is_named(text: str, name: str) -> None:
    outcome = judge("-", stdin=text)
    assert (outcome.exit_code, name in flat(outcome)) == (3, True), outcome.output


def test_what_is_not_known_says_what_can_be_read() -> None:
    outcome = judge("-", stdin="no Xid here\n")
    assert outcome.exit_code == 2
    assert "malformed" not in outcome.output
    assert "a kernel log" in flat(outcome)


@pytest.mark.parametrize(
    ("first", "second", "verdicts"),
    [
        (SOUND, ECC, ["unknown", "warn"]),
        (QUERY, re.sub(r"(Remapping Failure Occurred +: )No", r"\1Yes", QUERY), ["warn", "fail"]),
        (MATRIX, MATRIX.replace("NV18", "SYS"), ["unknown", "unknown"]),
    ],
)
def test_outputs_of_two_machines_are_two_sections(first: str, second: str, verdicts: list[str]) -> None:
    answer = json.loads(judge("-", "--format", "json", stdin=f"{first}\n== host-b ==\n{second}").output)
    assert [each["verdict"] for each in answer["judgements"]] == verdicts
    titles = [each["title"].partition(",")[0] for each in answer["judgements"]]
    assert titles == ["capture 1 of 2", "capture 2 of 2"]


@pytest.mark.parametrize("fault", [OFF_THE_BUS, ECC, links("uu", "u-")])
def test_a_fault_beside_a_healthy_run_counts(fault: str) -> None:
    log = (FIXTURES / "nccl-tests_allreduce_h200x8_8gib.log").read_text()
    assert judge("-", stdin=log + SOUND).exit_code == 0
    answer = json.loads(judge("-", "--format", "json", stdin=f"{log}\n{fault}").output)
    assert answer["judgements"][0]["verdict"] == "pass"
    assert answer["verdict"] in ("fail", "warn")


def test_every_kind_of_statement_has_a_meaning_of_its_own() -> None:
    listed = set(StatementKind) - {"xid", "recovery-action"}
    assert listed == set(FAILURES)


def test_no_recording_of_strangers_is_judged_wrong() -> None:
    scored = list(every(sorted(path.parent for path in CORPUS.glob("*/truth.yaml"))))
    assert len(scored) >= 150
    assert [one for one in scored if one.answer == WRONG] == []
    failures = [one for one in scored if one.file.parent.name == "failures"]
    assert [one for one in failures if one.answer != RIGHT] == []
