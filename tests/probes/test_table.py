"""The page for a person."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from builders.probing import Probe, words
from nodegauge_contract import (
    decode,
    render_matrix,
)
from testbed.profiles import Profile

On = Callable[[str | Profile], Probe]


def test_a_table_is_for_people_and_the_message_stays_the_document(probe: On) -> None:
    """Matrix, legend, condition and reasons on standard output; the termination log is for the operator."""
    on = probe("dgx1-v100-8")
    run = on.run("--format", "table")
    assert run.returncode == 0
    result = decode(on.termination_log.read_text())
    assert render_matrix(result) in run.stdout
    for text in ("Tesla V100", "6 of 6 up", "4/7 TNS", "topology not supported", "idle", "counters trio"):
        assert text in run.stdout
    assert run.stdout.isascii()


def test_a_table_without_a_driver_says_what_to_do(probe: On, tmp_path: Path) -> None:
    """A sentence and the way out, no traceback and no empty table."""
    on = probe("titan-rtx-nv2")
    on.environment["LD_LIBRARY_PATH"] = str(tmp_path)
    run = on.run("--format", "table")
    assert run.returncode == 0
    assert "NOTHING COULD BE READ: library-not-found" in run.stdout
    assert "install the NVIDIA driver" in " ".join(run.stdout.split())
    assert "GPU  " not in run.stdout


def test_a_table_without_a_gpu_says_what_to_check(probe: On) -> None:
    """The driver answers, and shows this container nothing."""
    on = probe("titan-rtx-nv2")
    on.hardware.fault("gpus-hidden", visible=0)
    assert "NVIDIA_VISIBLE_DEVICES=all" in on.run("--format", "table").stdout


def test_a_terminal_gets_no_line_that_it_would_break(probe: On) -> None:
    """Sixteen network cards beside eight GPUs: on 120 columns the matrix comes in parts, in a pipe whole."""
    result = probe("h100-sxm-8").result()
    narrow = render_matrix(result, width=120)
    assert max(map(len, narrow.splitlines())) <= 120
    parts = narrow.split("\n\nLegend")[0].split("\n\n")
    assert len(parts) > 1
    assert cells(*parts) == cells(render_matrix(result).split("\n\nLegend")[0])


def cells(*tables: str) -> dict[tuple[str, str], str]:
    """Every cell of some tables by its row and column."""
    found = {}
    for head, *rows in map(words, tables):
        for name, *row in rows:
            found |= {(name, column): cell for column, cell in zip(head, row, strict=False)}
    return found


def test_a_table_of_a_broken_machine_names_what_is_broken(probe: On) -> None:
    """A lost GPU keeps its row with the error; a hung call stands above everything."""
    on = probe("titan-rtx-nv2")
    on.hardware.fault("gpu-lost", gpu=1)
    assert "gpu-lost: NVML_ERROR_GPU_IS_LOST" in on.run("--format", "table").stdout
    on.hardware.heal()
    on.hardware.fault("hung-call")
    stdout = on.run("--format", "table", "--deadline", "6").stdout
    assert "INCOMPLETE: call-hung in nvmlDeviceGetPowerUsage" in stdout
    assert "NV2" in stdout
