"""Simulated hardware: profiles say what was recorded, and the demo's page what can go wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from testbed import profiles
from testbed.hardware import FAULTS

FIXTURES = Path(__file__).parents[1] / "fixtures"


def test_the_page_of_the_demo_counts_the_faults_right() -> None:
    page = (Path(__file__).parents[2] / "docs/demo.md").read_text("utf-8")
    assert f"the {len(FAULTS)} faults" in page


@pytest.mark.parametrize("name", profiles.names())
def test_a_profile_names_its_sources(name: str) -> None:
    wheres = [source.where for source in profiles.load(name).sources]

    named = re.findall(r"tests/fixtures/(\S+?)[,.;]?(?=\s|$)", " ".join(wheres))
    assert named or any(re.search(r"\w/\S+ (issue|pull)s? \d+|^read on ", where) for where in wheres)
    assert [file for file in named if not (FIXTURES / file).is_file()] == []
