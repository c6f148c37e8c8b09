"""`nodegauge judge` on output of nvidia-smi as people paste it."""

import json
import random
import re
from functools import partial

import pytest
import yaml

import support.results as made
from nodegauge_contract import Result as Document
from nodegauge_contract import render_matrix
from nodegauge_contract.pasted import document as pasted
from nodegauge_contract.pasted.document import PasteError
from nodegauge_judge import Verdict, judge_health
from nodegauge_judge.gpu_models import known_models
from support.judge_command import FIXTURES, flat, judge

result = partial(pasted.result, models=known_models().links)
NVLINK, PAIRS, PCIE = "nvlink", "nvlink-pairs", "pcie"
CUT = "cut"
CAREFUL = yaml.safe_load((FIXTURES / "careful-reader.yaml").read_text(encoding="utf-8"))
TABLES: dict[str, str | None] = {n: None if k == "none" else k for n, k in CAREFUL["tables"].items()}
READINGS = {name: (verdict, set(codes)) for name, (verdict, codes) in CAREFUL["readings"].items()}


def judged(text: str) -> dict:  # type: ignore[type-arg]
    outcome = judge("-", "--format", "json", stdin=text)
    assert outcome.exit_code in (0, 1, 3), outcome.output
    return json.loads(outcome.output)  # type: ignore[type-arg]


def read(name: str) -> str:
    return (FIXTURES / name).read_text()


def class_of(text: str) -> str | None:
    try:
        return judge_health(result(text)).interconnect.klass
    except PasteError:
        return None


@pytest.mark.parametrize(("name", "klass"), TABLES.items(), ids=TABLES)
def test_a_table_has_the_class_that_a_careful_reader_gives_it(name: str, klass: str | None) -> None:
    """The class is marked as pasted and says what is not known; the health stays unknown."""
    judgement = judged(read(name))
    interconnect = judgement["interconnect"]
    assert interconnect["class"] == (None if klass == CUT else klass), interconnect["message"]
    assert judgement["verdict"] == "unknown"
    if interconnect["class"] is not None:
        assert interconnect["evidence"] == "pasted"
        assert interconnect["message"].endswith("(from a pasted table: P2P and fabric not known)")
    assert interconnect["nvlinkGbps"] == CAREFUL["rates"].get(name)
    assert (klass == CUT) == ("the table is cut" in interconnect["message"])


@pytest.mark.parametrize(
    ("name", "verdict", "codes"), [(name, *row) for name, row in READINGS.items()], ids=READINGS
)
def test_readings_have_the_verdict_of_a_careful_reader(name: str, verdict: str, codes: set[str]) -> None:
    judgement = judged(read(name))
    findings = judgement["findings"]
    assert judgement["verdict"] == verdict
    assert {finding["code"] for finding in findings if finding["severity"] != "info"} == codes
    assert all("pasted table" in finding["evidence"]["source"] for finding in findings)
    assert judgement["answers"] == {}
    if verdict == "pass":
        assert "nothing wrong in the pasted text" in judgement["summary"]
        covered = [finding["message"] for finding in findings if finding["code"] == "pasted"]
        assert "does not cover: " in covered[0]


MANGLED = {
    "tabs as spaces": lambda text: text.replace("\t", "        "),
    "single spaces": lambda text: re.sub(r"[ \t]+", " ", text),
    "quoted": lambda text: re.sub(r"^", "> ", text, flags=re.MULTILINE),
    "a prompt above": lambda text: "root@gpu-node:~# nvidia-smi topo -m\n" + text,
    "ANSI header": lambda text: re.sub(r"(?m)^(\s*GPU0.*)$", "\x1b[4m\\1\x1b[0m", text, count=1),
    "ANSI without ESC": lambda text: re.sub(r"^(\s*GPU0.*)$", r"[4m\1[0m", text, count=1, flags=re.MULTILINE),
    "time stamps": lambda text: re.sub(r"^", "2026-11-20T08:01:02.123456Z ", text, flags=re.MULTILINE),
    "a Markdown fence": lambda text: f"```\n{text}\n```\n",
    "HTML": lambda text: "<pre>" + text.replace(" ", "&nbsp;").replace("\n", "<br>") + "</pre>",
    "empty lines between": lambda text: text.replace("\n", "\n\n"),
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "table bars": lambda text: re.sub(r"(?m)^(.*)$", r"| \1 |", re.sub(r"\t| {2,}", " | ", text)),
    "the legend below": lambda text: (
        text + "\nLegend:\n\n  X    = Self\n  SYS  = Connection\n  PIX  = x\n  NV#  = y\n"
    ),
}
KEPT = [name for name, klass in TABLES.items() if klass in (NVLINK, PAIRS, PCIE)]


@pytest.mark.parametrize("mangle", MANGLED.values(), ids=MANGLED)
@pytest.mark.parametrize("name", KEPT)
def test_what_a_paste_adds_does_not_change_the_class(name: str, mangle) -> None:  # type: ignore[no-untyped-def]
    assert class_of(mangle(read(name))) == TABLES[name]


@pytest.mark.parametrize("name", KEPT)
def test_damage_gives_the_same_class_or_none(name: str) -> None:
    chance = random.Random(name)
    text = read(name)
    for _ in range(30):
        position = chance.randrange(len(text))
        length = chance.choice((1, 1, 2, 8, 80))
        damaged = chance.choice(
            (
                text[:position],
                text[position:],
                text[:position] + text[position + length :],
                text[:position] + "\n" + text[position:],
                text[:position] + " " + text[position:],
                text[:position] + text[position : position + length] + text[position:],
                "\n".join(line[:position] for line in text.splitlines()),
            )
        )
        assert class_of(damaged) in (TABLES[name], None), damaged


def table(*rows: str, gpus: int = 2, command: str = "topo -m") -> str:
    header = " ".join(f"GPU{index}" for index in range(gpus))
    numbered = (f"GPU{index} {row}" for index, row in enumerate(rows))
    return "\n".join([f"$ nvidia-smi {command}", header, *numbered, ""])


NV4 = table("X NV4", "NV4 X")
SYS = table("X SYS", "SYS X")
NO_LINKS = NV4.replace("topo -m", "topo -mp").replace("NV4", "SYS")
P2P = {letter: table("X OK", "OK X", command=f"topo -p2p {letter}") for letter in "rwnap"}
QUERY = read("pasted/q_gh200_healthy-idle.txt")
THREE = table("X NV4 NV4", "NV4 X NV4", "NV4 NV4 X", gpus=3)
BROKEN_XML = read("nvidia-smi-qx_rtx3060.xml").replace("</fan_speed>", "", 1)


@pytest.mark.parametrize(
    ("text", "klass", "part"),
    [
        (NV4 + P2P["r"] + P2P["w"] + P2P["n"], NVLINK, "from a pasted table: fabric not known"),
        (P2P["a"] + NV4 + P2P["p"], NVLINK, "P2P and fabric not known"),
        (NV4 + P2P["n"].replace("OK", "NS"), None, "GPU 0 and GPU 1: NVLINK (NS: not supported)"),
        (NV4 + P2P["w"].replace("OK", "CNS"), None, "refused between GPU 0 and GPU 1: WRITE (CNS: chipset"),
        (NV4 + P2P["r"].replace("OK", "U"), None, "GPU 0 and GPU 1: READ (U: unknown to the driver)"),
        (NV4 + P2P["r"].replace("OK", "TNS").replace(" r\n", "\n"), None, "P2P between GPU 0 and GPU 1"),
        (SYS + P2P["r"].replace("OK", "GNS"), PCIE, "no GPU of 2 has an active NVLink"),
        (SYS + P2P["n"], None, "P2P over NVLink is OK between GPU 0 and GPU 1, but no link"),
        (P2P["r"], None, "the paste has no table of `nvidia-smi topo -m`"),
        (NV4 + NV4, NVLINK, "both GPUs are joined"),
        (NO_LINKS, None, "hides NVLinks"),
        (SYS + "SYS = a\nPIX = b\n", None, "line 2: the table of `topo -mp` hides NVLinks"),
        (NO_LINKS + NV4, NVLINK, "both GPUs are joined"),
        (table("X NV12", "NV1\n2 X"), None, "line 4: the table is cut: row GPU1 has 1 of 2 cells, then 2"),
        (table("X NV12 NV8", "NV12 X NV9", "NV8 NV9 X", gpus=3), None, "neither NVSwitches nor direct links"),
        (table("X NV18 ...", "NV18 X ...").replace("GPU1\n", "GPU1 ... GPU7\n", 1), None, "columns were"),
        (table("X NV1 SYS", "NV1 X", "SYS").replace("GPU1\n", "GP\n", 1), None, "which the header lacks"),
        (table("X SYS", "PHB X"), None, "line 4: GPU1 to GPU0 is PHB, but GPU0 to GPU1 is SYS"),
        (table("X SYS SYS", "SYS X SYS"), None, "line 3: row GPU0 has more cells than the header has"),
        (table("SYS X", "X SYS"), None, "line 3: expected X, and only there, where row and column are GPU0"),
    ],
    ids=range(20),
)
def test_tables_are_read_together(text: str, klass: str | None, part: str) -> None:
    interconnect = judged(text)["interconnect"]
    assert interconnect["class"] == klass
    assert part in interconnect["message"]


def test_readings_give_a_table_its_rate() -> None:
    second = (
        QUERY[QUERY.index("GPU 00000000") :].replace("00000000:DD", "00000000:DE").replace("33a7", "33a8")
    )
    both = (QUERY + second).replace(": 1\n", ": 2\n", 1).replace("480GB", "144G HBM3e")
    judgement = judged(table("X NV18", "NV18 X") + "$ nvidia-smi -q\n" + both)
    assert judgement["interconnect"]["nvlinkGbps"] == 450
    assert judgement["interconnect"]["message"].endswith("(from a pasted table: P2P not known)")
    assert [gpu["pci"] for gpu in judgement["gpus"]] == ["0000:dd:00.0", "0000:de:00.0"]
    assert judgement["verdict"] == "warn"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (THREE + P2P["r"], "line 7: this table has 2 GPUs, the table in line 2 has 3"),
        (NV4 + QUERY, "line 2: this table has 2 GPUs, `nvidia-smi -q` has 1"),
        (QUERY + QUERY[QUERY.index("    Product Name") :], "a second GPU without its line `GPU 00000000:3B"),
        (BROKEN_XML, "line 317: not XML (mismatched tag"),
        ("nvidia-smi says no", "expected the table of `nvidia-smi topo -m` with its header `GPU0 GPU1 ...`"),
    ],
    ids=range(5),
)
def test_what_cannot_be_read_is_named_with_exit_code_2(text: str, part: str) -> None:
    outcome = judge("-", stdin=text)
    assert (outcome.exit_code, part in flat(outcome)) == (2, True), outcome.output


@pytest.mark.parametrize("name", ["pasted/q_gh200_healthy-idle.txt", "nvidia-smi-qx_rtx3060.xml"])
def test_output_of_q_that_is_cut_is_unknown(name: str) -> None:
    """Whatever is missing could be the sick part; before the first GPU there is nothing to judge."""
    text = read(name)
    for position in range(100, len(text) - 200, 97):
        outcome = judge("-", "--format", "json", stdin=text[:position])
        assert outcome.exit_code in (2, 3), text[position - 80 : position]


@pytest.mark.parametrize(
    "mangle", [MANGLED[name] for name in ("single spaces", "quoted", "time stamps", "CRLF")]
)
@pytest.mark.parametrize("name", READINGS)
def test_what_a_paste_adds_does_not_change_readings(name: str, mangle) -> None:  # type: ignore[no-untyped-def]
    judgement = judged(mangle(read(name)))
    codes = {finding["code"] for finding in judgement["findings"] if finding["severity"] != "info"}
    assert (judgement["verdict"], codes) == READINGS[name]


MACHINES = {
    "DGX-2": made.switched(16, name="Tesla V100-SXM3-32GB", links=6, mbps=25_781),
    "DGX-1": made.dgx1(),
    "HGX A100 4": made.hgx_a100_4(),
    "H100": made.h100(),
    "bridged pairs": made.a100_bridged_pairs(),
    "PCIe": made.phb(),
}


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_the_matrix_that_nodegauge_prints_can_be_pasted(machine: Document) -> None:
    assert class_of(render_matrix(machine)) == judge_health(machine).interconnect.klass


HEADER = "| NVIDIA-SMI 550.90.07    Driver Version: 550.90.07    CUDA Version: 12.4     |\n"
H100 = """\
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:1B:00.0 Off |                    0 |
| N/A   34C    P0             70W /  700W |       4MiB /  81559MiB |      0%      Default |
|   1  NVIDIA H100 80GB HBM3          On  |   00000000:43:00.0 Off |                    0 |
| N/A   36C    P0             71W /  700W |       4MiB /  81559MiB |      0%      Default |
"""
DEAD = H100.replace("| N/A   36C    P0             71W /  700W", "|ERR!   ERR! ERR!           ERR! / ERR!")
WINDOWS = """\
|   0  NVIDIA GeForce RTX 3090      WDDM  |   00000000:01:00.0  On |                  N/A |
|  0%   41C    P8             21W /  350W |     800MiB /  24576MiB |      2%      Default |
|   1  NVIDIA GeForce RTX 3090      WDDM  |   00000000:02:00.0 Off |                  N/A |
|  0%   39C    P8             19W /  350W |      10MiB /  24576MiB |      0%      Default |
"""
TOPOLOGY = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV18\t0-51\nGPU1\tNV18\t X \t0-51\n"
LIST = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\nGPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-2)\n"


def codes(document: Document) -> set[str]:
    return {finding.code for finding in judge_health(document).findings if finding.severity != "info"}


@pytest.mark.parametrize("text", [H100, HEADER + H100, WINDOWS, HEADER + H100 + LIST])
def test_the_table_alone_never_says_that_a_gpu_is_healthy(text: str) -> None:
    document = result(text)
    assert [gpu.index for gpu in document.gpus] == [0, 1]
    assert judge_health(document).verdict is Verdict.UNKNOWN
    assert codes(document) == {"paste-without-health"}


@pytest.mark.parametrize("text", [DEAD, HEADER + DEAD, "> " + DEAD.replace("\n", "\n> "), DEAD + LIST])
def test_a_gpu_whose_temperature_is_err_could_not_be_read(text: str) -> None:
    document = result(text)
    assert [gpu.error is not None for gpu in document.gpus] == [False, True]
    assert "gpu-unreadable" in codes(document)


def test_power_that_shows_err_is_unknown_and_nothing_worse() -> None:
    """Azure's diagnostics call this transient; and GPU 0 is missing from the recording."""
    document = result((FIXTURES / "pasted/smi_v100_power-err.txt").read_text())
    assert (document.gpus[0].temperature.gpu, document.gpus[0].power.enforced_limit_mw) == (29, 250_000)
    assert document.gpus[0].error is None
    assert codes(document) == {"paste-incomplete"}


def test_a_matrix_beside_the_table_gets_class_and_rate() -> None:
    document = result(HEADER + H100 + TOPOLOGY)
    interconnect = judge_health(document).interconnect
    assert (interconnect.klass, interconnect.nvlink_gbps) == ("nvlink", 450)
    assert (document.system.driver, document.system.cuda) == ("550.90.07", 12040)


@pytest.mark.parametrize("missing", [0, 2])
def test_a_table_without_one_of_its_gpus_beside_a_matrix_names_no_model(missing: int) -> None:
    lines = H100.splitlines(keepends=True)
    document = result("".join(lines[:missing] + lines[missing + 2 :]) + TOPOLOGY)
    assert judge_health(document).interconnect.nvlink_gbps is None
