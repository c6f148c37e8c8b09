"""Which Kubernetes the tests run on: the newest unless the environment chooses another that can be built."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from testbed.binaries import CHOICE, KUBERNETES, MODULES, release
from testbed.controlplane_config import OPT_INS
from testbed.errors import BinaryError

CHECKOUT = Path(__file__).resolve().parents[2]


def test_the_first_release_is_the_default_and_another_has_to_be_known() -> None:
    assert release({}) == release({CHOICE: ""}) == "1.37"
    assert release({CHOICE: "1.36"}) == "1.36"
    with pytest.raises(BinaryError, match=r"is 1\.35: set it to 1\.37 or 1\.36, or unset it"):
        release({CHOICE: "1.35"})


@pytest.mark.parametrize("name", KUBERNETES)
def test_each_release_has_its_module_and_its_opt_ins(name: str) -> None:
    module = (MODULES / f"kubernetes-{name}" / "go.mod").read_text()
    assert set(re.findall(r"k8s\.io/kubernetes v(\S+)", module)) == {KUBERNETES[name]}
    assert set(re.findall(r"=> \S+ v0\.(\S+)", module)) == {KUBERNETES[name].removeprefix("1.")}
    assert OPT_INS[name].gates


def test_the_part_of_ci_on_the_older_release_names_tests_and_a_release_that_are_there() -> None:
    steps = runpy.run_path(str(CHECKOUT / ".ci" / "steps.py"))
    command = next(lane["older"] for lane in steps["LANES"] if "older" in lane)
    assert command[1].removeprefix(f"{CHOICE}=") in list(KUBERNETES)[1:]
    assert all((CHECKOUT / path).exists() for path in steps["OLDER"])
