"""How the simulated kubelet is compared with the record of a real one."""

from __future__ import annotations

from pathlib import Path

from testbed.kubelet_comparison import recorded
from testbed.kubelet_comparison.declared import DECLARED
from testbed.kubelet_comparison.perform import EVERY_POD
from testbed.kubelet_comparison.samples import SAMPLES

README = Path(__file__).resolve().parents[1] / "testbed" / "README.md"


def test_the_record_holds_the_samples_and_says_of_which_programs() -> None:
    """A sample that was added without a recording has nothing to be compared with."""
    assert set(recorded.read()) == {sample.name for sample in SAMPLES} | {EVERY_POD}
    assert recorded.versions()["kubelet"].startswith("v1.")


def test_the_readme_says_every_declared_difference() -> None:
    """One table, and the page that people read."""
    page = " ".join(README.read_text(encoding="utf-8").split())
    assert [one.why for one in DECLARED if one.why not in page] == []
