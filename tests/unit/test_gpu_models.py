"""The table of GPU models: every name finds its own row, and a new model is one row."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from nodegauge_contract import Gpu
from nodegauge_judge import gpu_models
from nodegauge_judge.gpu_models import NO_ROW, Form, TableInvalid, known_models, parse
from nodegauge_judge.interconnect import board
from nodegauge_judge.nccl.expectations import Expectations
from support.nccl_results import GIB

NAMES = yaml.safe_load(Path(__file__).with_name("gpu-names.yaml").read_text("utf-8"))
X900 = Path(__file__).with_name("x900.yaml")


@pytest.mark.parametrize("model", NAMES)
def test_a_product_name_finds_its_own_row(model: str) -> None:
    """A wide glob above a narrow one would hide it."""
    assert known_models().find(NAMES[model]).model == model


def test_an_unknown_product_has_no_row() -> None:
    assert known_models().find("NVIDIA Rubin") is known_models().find(None) is NO_ROW
    assert (NO_ROW.form, NO_ROW.nvlink, NO_ROW.nvls, NO_ROW.bandwidth) == (Form.UNKNOWN, None, None, ())


@pytest.fixture
def with_x900(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(gpu_models, "DATA", str(X900))
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
