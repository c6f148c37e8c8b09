"""The table of GPU models: every name finds its own row, and a new model is one row."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nodegauge_contract import Gpu
from nodegauge_judge import gpu_models
from nodegauge_judge.gpu_models import NO_ROW, Form, TableInvalid, known_models, parse
from nodegauge_judge.interconnect import board
from nodegauge_judge.nccl.expectations import Expectations
from support.nccl_results import GIB

NAMES = {
    "A100 SXM4": "NVIDIA A100-SXM4-80GB",
    "A100 SXM, cut name": "NVIDIA A100-SXM...",
    "A100 PCIe": "NVIDIA A100 80GB PCIe",
    "A100X": "NVIDIA A100X",
    "A100, other names": "GRID A100-10C",
    "A800 SXM4": "NVIDIA A800-SXM4-80GB",
    "A800 PCIe": "NVIDIA A800 40GB Active",
    "H100 SXM5": "NVIDIA H100 80GB HBM3",
    "H100 NVL": "NVIDIA H100 NVL",
    "H100 PCIe": "NVIDIA H100 PCIe",
    "H100": "NVIDIA H100",
    "H100, other names": "NVIDIA H100XM-80C",
    "H800 card": "NVIDIA H800 PCIe",
    "H800": "NVIDIA H800",
    "GH200": "NVIDIA GH200 480GB",
    "H200 NVL": "NVIDIA H200 NVL",
    "H200": "NVIDIA H200",
    "H20": "NVIDIA H20-3e",
    "GB200": "NVIDIA GB200",
    "GB300": "NVIDIA GB300",
    "B200": "NVIDIA B200",
    "B300": "NVIDIA B300 SXM6 AC",
    "B100": "NVIDIA B100",
    "V100 SXM2": "Tesla V100-SXM2-16GB",
    "V100 SXM3": "Tesla V100-SXM3-32GB",
    "V100 of a DGX Station": "Tesla V100-DGXS-32GB",
    "V100 PCIe": "Tesla V100-PCIE-16GB",
    "Quadro GV100": "Quadro GV100",
    "V100, other names": "GRID V100D-8C",
    "P100 SXM2": "Tesla P100-SXM2-16GB",
    "Quadro GP100": "Quadro GP100",
    "P100 PCIe": "Tesla P100-PCIE-16GB",
    "RTX 5090": "NVIDIA GeForce RTX 5090",
    "RTX PRO 6000": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "RTX 4090": "NVIDIA GeForce RTX 4090",
    "RTX 3090": "NVIDIA GeForce RTX 3090",
    "RTX 2080 Ti": "NVIDIA GeForce RTX 2080 Ti",
    "TITAN RTX": "TITAN RTX",
    "Quadro RTX 6000, RTX 8000": "Quadro RTX 8000",
    "RTX 2070, RTX 2080, Quadro RTX 5000": "NVIDIA GeForce RTX 2080 SUPER",
    "RTX A5000": "NVIDIA RTX A5000",
    "RTX A4000 to A6000": "NVIDIA RTX A6000",
    "A40": "NVIDIA A40-48C",
    "A30": "NVIDIA A30",
    "T4": "Tesla T4",
    "GeForce, GTX, RTX, Quadro, TITAN": "NVIDIA RTX A1000",
    "CMP": "NVIDIA CMP 170HX",
    "L40S": "NVIDIA L40S",
    "L40": "NVIDIA L40-48Q",
    "L4": "NVIDIA L4",
    "A10": "NVIDIA A10",
    "L, A, T and P with a number": "NVIDIA A16",
    "SXM": "NVIDIA X1-SXM7-1TB",
    "PCIe": "NVIDIA X1 PCIe",
}
"""By model: a name that NVML has for it.  The rows of product lines have one that no other row knows."""

X900 = """
- model: X900
  gpu: ["*X900-SXM*"]
  form: module
  capability: "14.0"
  nvls: false
  baseMhz: {X900-SXM9: 1234}
  nvlink: {generation: 6, links: 20, gbps: 100, joins: switch}
  board: {modules: 16, switches: 3}
  source: "invented"
  bandwidth:
    - {count: 16, collective: all_reduce, bytes: 1073741824, busbw: 1500, source: "invented log"}
- model: all others
  gpu: ["*"]
  form: card
  source: "invented"
"""


@pytest.mark.parametrize("model", NAMES)
def test_a_product_name_finds_its_own_row(model: str) -> None:
    """A wide glob above a narrow one would hide it."""
    assert known_models().find(NAMES[model]).model == model


def test_an_unknown_product_has_no_row() -> None:
    assert known_models().find("NVIDIA Rubin") is known_models().find(None) is NO_ROW
    assert (NO_ROW.form, NO_ROW.nvlink, NO_ROW.nvls, NO_ROW.bandwidth) == (Form.UNKNOWN, None, None, ())


@pytest.fixture
def with_x900(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "table.yaml").write_text(X900, encoding="utf-8")
    monkeypatch.setattr(gpu_models, "DATA", str(tmp_path / "table.yaml"))
    known_models.cache_clear()
    yield
    monkeypatch.undo()
    known_models.cache_clear()


@pytest.mark.usefixtures("with_x900")
def test_a_new_model_is_one_row() -> None:
    gpu = Gpu(index=0, name="NVIDIA X900-SXM9")
    assert (board.form(gpu), board.links_behind_switch(gpu)) == (Form.MODULE, 20)
    assert known_models().base_mhz("NVIDIA X900-SXM9") == 1234
    expectation = Expectations.default().find(
        gpu="NVIDIA X900-SXM9", count=16, collective="all_reduce", bytes=GIB, nvls=None, link="nvlink"
    )
    assert (expectation.busbw, expectation.source) == (1500, "invented log")
    assert board.form(Gpu(index=0, name="NVIDIA H100 80GB HBM3")) is Form.CARD


ROW = "- {model: X, gpu: ['*X*'], source: ours"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("a: 1", "not a list of rows: "),
        ("- {model: X}", "row 1 (X): Object missing required field `gpu`"),
        (f"{ROW}, links: 3}}", "row 1 (X): Object contains unknown field `links`"),
        (
            f"{ROW}, nvlink: {{generation: 1, links: 99, gbps: 3}}}}",
            "row 1 (X): Expected `int` <= 36 - at `$.nvlink.links`",
        ),
        (f"{ROW}, bandwidth: [{{count: 1}}]}}", "row 1 (X): Expected `int` >= 2 - at `$.bandwidth[0].count`"),
        (f"{ROW}, board: {{modules: 8}}}}", "row 1 (X): board and reached need nvlink and capability"),
        (f"{ROW}}}\n{ROW}}}", "X: two rows have this model"),
    ],
)
def test_a_wrong_table_names_row_and_field(table: str, message: str) -> None:
    with pytest.raises(TableInvalid) as caught:
        parse(table.encode())
    assert message in str(caught.value)
