"""The findings catalogue: complete, consistent, and equal to the reference page in the repository."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from nodegauge_judge import CATALOGUE, Code, Effect, Entry, Judged, Probe, Severity, Thresholds
from nodegauge_judge.answers import PER_GPU, READABLE
from nodegauge_judge.history.gpu_history import LOAD_ROWS
from nodegauge_judge.reference import page

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "findings.md"


def test_the_committed_page_is_what_the_catalogue_says() -> None:
    """Regenerate with `make reference`."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_the_page_is_printed_by_the_module() -> None:
    """`python -m nodegauge_judge.reference` needs nothing but the judge."""
    made = subprocess.run(
        [sys.executable, "-X", "utf8", "-m", "nodegauge_judge.reference"], capture_output=True, check=True
    )
    assert made.stdout.decode() == page()


def test_every_code_has_exactly_one_row() -> None:
    """A code without a row could be reported and never explained."""
    assert set(CATALOGUE) == set(Code)
    assert all(CATALOGUE[code].code is code for code in Code)


@pytest.mark.parametrize("entry", CATALOGUE.values(), ids=lambda entry: entry.code.value)
def test_a_row_tells_what_it_means_when_it_comes_and_what_to_do(entry: Entry) -> None:
    """Title, meaning, at least one severity, a next step that reads after "Next: ", and a way out."""
    assert entry.when
    assert entry.title[0].islower() or entry.title.startswith(("NVLink", "GPU", "PCIe", "NCCL", "12 V"))
    assert not entry.title.endswith(".")
    assert entry.meaning.endswith(".")
    assert entry.next_step.endswith(".")
    assert entry.way_out
    assert all(not words.endswith(".") for words in entry.when.values())
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", entry.code.value)
    assert "  " not in entry.meaning + entry.next_step + "".join(entry.way_out)


@pytest.mark.parametrize("entry", CATALOGUE.values(), ids=lambda entry: entry.code.value)
def test_what_leaves_a_node_unjudged_never_gates_it(entry: Entry) -> None:
    """No data decides nothing: such rows warn, and hold nothing on the node."""
    if entry.effect is Effect.UNJUDGED:
        assert set(entry.when) == {Severity.WARN}
        assert entry.gate is None
    else:
        assert Severity.FAIL not in entry.when or entry.gate is not None


def test_thresholds_named_in_the_catalogue_exist_with_the_defaults_that_it_gives() -> None:
    """A field that was renamed, or a default that was changed, must change the words too."""
    fields = {field.encode_name: field.default for field in msgspec.structs.fields(Thresholds)}
    words = " ".join(text for entry in CATALOGUE.values() for text in (entry.meaning, *entry.when.values()))
    named = re.findall(r"`([a-z]+[A-Z]\w*)` \((?:default )?([\d.]+)\)", words)
    assert set(re.findall(r"`([a-z]+[A-Z]\w*)`", words)) <= set(fields)
    assert len(named) > 30
    assert all(float(number) == fields[name] for name, number in named)


def test_every_threshold_is_used_by_the_judge_and_explained_on_the_page() -> None:
    """A number of the policy that nothing compares with would be a promise that is not kept."""
    source = Path(inspect.getfile(Thresholds)).parent
    code = " ".join(
        path.read_text(encoding="utf-8") for path in source.rglob("*.py") if path.name != "thresholds.py"
    )
    for field in msgspec.structs.fields(Thresholds):
        assert re.search(rf"\.{field.name}\b", code), field.name
        row = re.search(rf"^\| `{field.encode_name}` \| {field.default:g} \| (.+) \|$", page(), re.MULTILINE)
        assert row is not None
        assert f"Default {field.default:g}." in row[1]
        assert re.search(r"Own[.:]|Source: ", row[1])


def test_a_gated_row_says_what_good_needs() -> None:
    """A row with a gate and no way to answer good could only be left by probation."""
    gated = {
        entry.code: entry.gate.judged
        for entry in CATALOGUE.values()
        if entry.gate is not None and entry.probe is Probe.HEALTH
    }
    assert {code for code, judged in gated.items() if judged is Judged.UNDER_LOAD} == set(PER_GPU)
    assert {code for code, judged in gated.items() if judged is Judged.ALWAYS} == set(READABLE)
    assert {code.value for code in PER_GPU} == set(LOAD_ROWS)
