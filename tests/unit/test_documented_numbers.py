"""Numbers that pages repeat from the code: each drifted once."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodegauge_contract.model import MAJOR, MINOR
from nodegauge_operator.core.probes import health, watch
from nodegauge_probes.watch_options import NUMBERS

ROOT = Path(__file__).resolve().parents[2]


def text_of(page: str) -> str:
    """The page on one line, without the marks of comments."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    return " ".join(" ".join(line.strip().removeprefix("# ") for line in lines).split())


def test_the_contract_names_the_version_that_the_code_writes() -> None:
    """Readers decide by it what a document can hold."""
    assert f"`nodegauge.dev/probe-result`, version {MAJOR}.{MINOR};" in text_of("probes/README.md")


def test_pages_say_what_the_container_of_mode_watch_requests() -> None:
    """It is on every node by default, so people plan with it."""
    cpu, memory = watch.REQUESTS["cpu"], watch.REQUESTS["memory"]
    stated = memory.replace("Mi", " MiB")
    assert f"no GPU, {cpu} CPU, {stated} |" in text_of("README.md")
    assert f"requests {cpu} CPU and {stated}" in text_of("docs/faq.md")


@pytest.mark.parametrize("page", ["charts/nodegauge/values.yaml", "crds/gpuvalidationpolicies.yaml"])
def test_values_say_what_both_kinds_of_health_pods_request(page: str) -> None:
    """Users merge their own resources into these."""
    cpu, memory = health.REQUESTS["cpu"], health.REQUESTS["memory"]
    assert watch.REQUESTS["cpu"] == cpu
    assert watch.LIMITS == health.LIMITS
    assert f"requests {cpu} CPU and {memory}, in mode Watch {watch.REQUESTS['memory']}; limits" in text_of(
        page
    )


def test_pages_say_how_often_a_calm_node_reports() -> None:
    """The container's own default and the policy's are the same."""
    [usual] = [one[1] for one in NUMBERS if one[0] == "interval"]
    assert f"`probes.health.watch.interval` ({usual / 3600:g} hours)" in text_of("docs/install.md")
