"""`nodegauge judge` on the table of plain `nvidia-smi`: names of GPUs, and those that do not answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodegauge_contract import Result
from nodegauge_contract.pasted.document import result
from nodegauge_judge import Verdict, judge_health

FIXTURES = Path(__file__).parents[1] / "fixtures"
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
|ERR!   39C    P8             19W /  350W |      10MiB /  24576MiB |      0%      Default |
"""
TOPOLOGY = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV18\t0-51\nGPU1\tNV18\t X \t0-51\n"
LIST = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\nGPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-2)\n"


def codes(document: Result) -> set[str]:
    """Codes of fail and warn."""
    return {finding.code for finding in judge_health(document).findings if finding.severity != "info"}


@pytest.mark.parametrize("text", [H100, HEADER + H100, WINDOWS, HEADER + H100 + LIST])
def test_the_table_alone_never_says_that_a_gpu_is_healthy(text: str) -> None:
    """A fan that cannot be read is no fault of the GPU."""
    document = result(text)
    assert [gpu.index for gpu in document.gpus] == [0, 1]
    assert judge_health(document).verdict is Verdict.UNKNOWN
    assert codes(document) == {"paste-without-health"}


@pytest.mark.parametrize("text", [DEAD, HEADER + DEAD, "> " + DEAD.replace("\n", "\n> "), DEAD + LIST])
def test_a_gpu_whose_temperature_is_err_could_not_be_read(text: str) -> None:
    """Its sibling stays readable, and `-L` does not hide the error."""
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
    """The table names the model, the driver and CUDA."""
    document = result(HEADER + H100 + TOPOLOGY)
    interconnect = judge_health(document).interconnect
    assert (interconnect.klass, interconnect.nvlink_gbps) == ("nvlink", 450)
    assert (document.system.driver, document.system.cuda) == ("550.90.07", 12040)


@pytest.mark.parametrize("missing", [0, 2])
def test_a_table_without_one_of_its_gpus_beside_a_matrix_names_no_model(missing: int) -> None:
    """The numbers of GPUs differ, so that their names belong to nobody."""
    lines = H100.splitlines(keepends=True)
    document = result("".join(lines[:missing] + lines[missing + 2 :]) + TOPOLOGY)
    assert judge_health(document).interconnect.nvlink_gbps is None
