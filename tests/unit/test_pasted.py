"""`nodegauge judge` on output of nvidia-smi as people paste it."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nodegauge_cli.__main__ import main

FIXTURES = Path(__file__).parents[1] / "fixtures"

NVLINK, PAIRS, PCIE = "nvlink", "nvlink-pairs", "pcie"
TABLES: dict[str, str | None] = {
    # file: the class that a careful reader gives it, without this program; None for no class
    "topo-m_2gpu_nv2.txt": NVLINK,
    "topo-m_2gpu_phb.txt": PCIE,
    "topo-m_dgx1-v100x8_ib.txt": NVLINK,  # NV1 and NV2 in a mesh; 0-1-5-4-6-7-3-2-0 is a ring of links
    "topo-m_gb200x4_nvsentinel.txt": NVLINK,
    "topo-m_h100x8_wrapped-header_nvsentinel.txt": NVLINK,
}
EXIT_UNKNOWN = 3


def judge(text: str, *options: str) -> Result:
    """The command's outcome for a paste on standard input."""
    return CliRunner().invoke(main, ["judge", *options, "-"], input=text)


def judged(text: str) -> dict:  # type: ignore[type-arg]
    """The judgement as JSON."""
    outcome = judge(text, "--format", "json")
    assert outcome.exit_code in (0, 1, 3), outcome.output
    return json.loads(outcome.output)  # type: ignore[type-arg]


def read(name: str) -> str:
    """A fixture's text."""
    return (FIXTURES / name).read_text()


def class_of(text: str) -> str | None:
    """The class, or None where there is none or the paste is refused."""
    outcome = judge(text, "--format", "json")
    return json.loads(outcome.output)["interconnect"]["class"] if outcome.exit_code != 2 else None


@pytest.mark.parametrize(("name", "klass"), TABLES.items(), ids=TABLES)
def test_a_table_has_the_class_that_a_careful_reader_gives_it(name: str, klass: str | None) -> None:
    """The class is marked as pasted and says what is not known; the health stays unknown."""
    judgement = judged(read(name))
    interconnect = judgement["interconnect"]
    assert interconnect["class"] == klass, interconnect["message"]
    assert judgement["verdict"] == "unknown"
    if klass is not None:
        assert interconnect["evidence"] == "pasted"
        assert interconnect["message"].endswith("(from a pasted table: P2P and fabric not known)")


MANGLED = {
    "tabs as spaces": lambda text: text.replace("\t", "        "),
    "single spaces": lambda text: re.sub(r"[ \t]+", " ", text),
    "quoted": lambda text: re.sub(r"^", "> ", text, flags=re.MULTILINE),
    "a prompt above": lambda text: "root@gpu-node:~# nvidia-smi topo -m\n" + text,
    "ANSI header": lambda text: re.sub(
        r"^(\s*GPU0.*)$", "\x1b[4m\\1\x1b[0m", text, count=1, flags=re.MULTILINE
    ),
    "ANSI without ESC": lambda text: re.sub(r"^(\s*GPU0.*)$", r"[4m\1[0m", text, count=1, flags=re.MULTILINE),
    "time stamps": lambda text: re.sub(r"^", "2026-11-20T08:01:02.123456Z ", text, flags=re.MULTILINE),
    "a Markdown fence": lambda text: f"```\n{text}\n```\n",
    "HTML": lambda text: "<pre>" + text.replace(" ", "&nbsp;").replace("\n", "<br>") + "</pre>",
    "empty lines between": lambda text: text.replace("\n", "\n\n"),
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "table bars": lambda text: re.sub(
        r"^(.*)$", r"| \1 |", re.sub(r"\t| {2,}", " | ", text), flags=re.MULTILINE
    ),
    "the legend below": lambda text: (
        text + "\nLegend:\n\n  X    = Self\n  SYS  = Connection\n  PIX  = x\n  NV#  = y\n"
    ),
}
KEPT = [name for name, klass in TABLES.items() if klass is not None]


@pytest.mark.parametrize("mangle", MANGLED.values(), ids=MANGLED)
@pytest.mark.parametrize("name", KEPT)
def test_what_a_paste_adds_does_not_change_the_class(name: str, mangle) -> None:  # type: ignore[no-untyped-def]
    """Terminals, chats and web pages add these; the table below them is whole."""
    assert class_of(mangle(read(name))) == TABLES[name]


@pytest.mark.parametrize("name", KEPT)
def test_damage_gives_the_same_class_or_none(name: str) -> None:
    """Characters, lines and columns that are lost, doubled, wrapped or moved never make another class."""
    chance = random.Random(name)
    text = read(name)
    for _ in range(60):
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
