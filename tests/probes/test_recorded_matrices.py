"""A real probe run beside what nvidia-smi printed on the real machine; some recordings are kept as rows."""

from pathlib import Path

import pytest
import yaml
from msgspec import structs
from msgspec.structs import replace

from nodegauge_contract import Result, Unavailable, render_matrix
from nodegauge_contract.pasted import document as pasted
from nodegauge_judge.gpu_models import known_models
from support.probing import Healthy, table_cells
from testbed import profiles

FIXTURES = Path(__file__).parent.parent / "fixtures"
MODELLED = {name: recording for name in profiles.names() if (recording := profiles.load(name).recording)}
OF_NO_MACHINE = {"topo-m_h100x8_wrapped-header_nvsentinel.txt"}
"""Made to break parsers: tests/unit/test_contract_matrix.py has the look from it."""

PUBLISHED = yaml.safe_load((FIXTURES / "published-matrices.yaml").read_text(encoding="utf-8"))


def cells(row: str) -> list[str]:
    """A row with its repetitions spelt out: "X 2*NV4" is X, NV4, NV4."""
    counted = [cell.rpartition("*") for cell in row.split()]
    return [name for count, _, name in counted for _ in range(int(count or 1))]


def drawn_as(result: Result, driver: str) -> Result:
    return replace(result, system=replace(result.system, driver=driver)) if driver else result


@pytest.mark.parametrize("name", MODELLED)
def test_the_matrix_equals_the_recorded_one(healthy: Healthy, name: str) -> None:
    recorded = (FIXTURES / MODELLED[name].file).read_text()
    result = healthy(name)
    matrix = render_matrix(drawn_as(result, MODELLED[name].drawn_as))
    assert table_cells(matrix)[: len(table_cells(recorded))] == table_cells(recorded)
    whole = not MODELLED[name].drawn_as  # who draws a table anew may leave out the rows of network cards
    assert len(table_cells(recorded)) == 1 + len(result.gpus) + len(result.nics.names) * whole
    if "Legend" in recorded:
        assert matrix.split("\n\n", 1)[1].split() == recorded.strip("\n").split("\n\n", 1)[1].split()


def test_every_recorded_matrix_is_of_some_profile() -> None:
    """A recording that no profile names would be compared with nothing."""
    kept = {path.name for path in FIXTURES.glob("topo-m_*")}
    assert {recording.file for recording in MODELLED.values()} == kept - OF_NO_MACHINE
    assert len(MODELLED) >= 4


@pytest.mark.parametrize("name", PUBLISHED)
def test_rows_and_columns_are_the_published_ones(healthy: Healthy, name: str) -> None:
    head, *rows = table_cells(render_matrix(healthy(name)))
    expected = dict(PUBLISHED[name])
    assert head == expected.pop("columns").split()
    devices = len([column for column in head if not column.endswith(("Affinity", "ID"))])
    printed = {row[0]: row[1 : devices + 1] for row in rows}
    assert {row: printed[row] for row in expected} == {row: cells(text) for row, text in expected.items()}


CARDS: dict[str, tuple[str, set[str]]] = {
    "t4-1": ("nvidia-smi-qx_tesla-t4.xml", set()),
    # ECC is off there, and the profile has none
    "rtx4000ada-1": ("nvidia-smi-qx_rtx4000ada.xml", {"ecc.mode"}),
    "rtx3060-1": ("nvidia-smi-qx_rtx3060.xml", set()),
    "gtx1660ti-1": ("nvidia-smi-qx_gtx1660ti.xml", set()),
    # its place is made up, and the paste has the memory of its slice
    "a100-mig-4": ("nvidia-smi-qx_a100-sxm4.xml", {"pci", "memory_mib"}),
}
"""By profile: the recording, and what the profile has differently."""
OF_THE_MOMENT = {"uuid", "power.instant_mw", "events.read", "events.seen"}


def values(value: object, path: str = "") -> dict[str, object]:
    """All that was read of a GPU, by path; windows and lists are apart, which a paste has not."""
    if isinstance(value, Unavailable | list) or path in ("window", "mig"):
        return {}
    if not hasattr(value, "__struct_fields__"):
        return {path: round(value, -9) if path.endswith("_ns") and isinstance(value, int) else value}
    inner = {name: values(one, f"{path}.{name}".lstrip(".")) for name, one in structs.asdict(value).items()}
    return {name: one for each in inner.values() for name, one in each.items()}


@pytest.mark.parametrize("name", CARDS)
def test_a_probe_reads_of_a_card_what_nvidia_smi_printed(healthy: Healthy, name: str) -> None:
    """Single cards and workstations; 4,252 s of SW power cap are there from the start."""
    file, own = CARDS[name]
    printed = pasted.result((FIXTURES / file).read_text(), models=known_models().links)
    result = healthy(name)
    assert (result.system.driver, result.system.cuda) == (printed.system.driver, printed.system.cuda)
    seen, recorded = values(result.gpus[0]), values(printed.gpus[0])
    compared = recorded.keys() - OF_THE_MOMENT - own
    assert {path: seen.get(path) for path in compared} == {path: recorded[path] for path in compared}
    assert len(compared) > 25
