"""Raw NVML answers to values: sets as lists, bus ids, field values with a status and a type of their own."""

from __future__ import annotations

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodegauge_contract import Unavailable
from nodegauge_probes.nvml import results


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([0], "0"),
        ([*range(20), *range(40, 60)], "0-19,40-59"),
        ([*range(56, 112), *range(168, 224)], "56-111,168-223"),
        ([63, 64, 65, 127, 129], "63-65,127,129"),
        ([0, 2, 4], "0,2,4"),
    ],
)
def test_a_mask_reads_as_people_write_sets(numbers: list[int], text: str) -> None:
    """Runs are joined over word borders, single numbers stand alone."""
    mask = [sum(1 << n % 64 for n in numbers if n // 64 == w) for w in range(4)]
    assert results.ranges(mask) == text


@given(st.sets(st.integers(0, 255)))
def test_no_number_of_a_mask_is_lost_or_added(numbers: set[int]) -> None:
    """Expanding the text gives back the set."""
    text = results.ranges([sum(1 << n % 64 for n in numbers if n // 64 == w) for w in range(4)])
    numbers_in_text: set[int] = set()
    for part in text.split(",") if text else []:
        first, _, last = part.partition("-")
        numbers_in_text.update(range(int(first), int(last or first) + 1))
    assert numbers_in_text == numbers


@pytest.mark.parametrize(
    ("nvml", "sysfs"),
    [
        ("00000000:0F:00.0", "0000:0f:00.0"),
        ("00000001:00:00.0", "0001:00:00.0"),
        ("00010000:E1:00.0", "10000:e1:00.0"),
        ("0000:0f:00.0", "0000:0f:00.0"),
        ("", ""),
        ("GPU-7", ""),
        ("xyz:00:00.0", ""),
    ],
)
def test_bus_ids_are_spelt_as_in_sysfs(nvml: str, sysfs: str) -> None:
    """Lower case, the domain with four digits and more only where it needs them; anything else is empty."""
    assert results.bus_id(nvml) == sysfs


def test_a_far_end_that_is_no_text_is_an_empty_one() -> None:
    """A hypervisor leaves bytes in the bus id that do not decode."""
    info = pynvml.nvmlPciInfo_t()
    info.busId = b"\xff\xfe\x80"
    assert results.bus_id_of(info) == ""


def element(*, kind: int = 3, status: int = 0, **value: float) -> pynvml.c_nvmlFieldValue_t:
    made = pynvml.c_nvmlFieldValue_t()
    made.nvmlReturn, made.valueType = status, kind
    for member, number in value.items():
        setattr(made.value, member, number)
    return made


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (element(kind=0, dVal=1.5), 1.5),
        (element(kind=1, uiVal=7), 7),
        (element(kind=2, ulVal=8), 8),
        (element(kind=3, ullVal=9), 9),
        (element(kind=4, sllVal=-10), -10),
        (element(kind=5, siVal=-7), -7),
        (element(kind=6, usVal=3), 3),
    ],
)
def test_the_value_type_says_which_member_is_meant(field: pynvml.c_nvmlFieldValue_t, value: float) -> None:
    """Every type of nvmlValueType_t is read from its own member of the union."""
    assert results.field(field) == value


def test_a_field_with_a_bad_status_or_type_is_no_value() -> None:
    """The status of the element, an unknown type and a type that was not asked for all give reasons."""
    assert results.field(element(status=3, ullVal=5)) == Unavailable("NVML_ERROR_NOT_SUPPORTED")
    assert isinstance(results.field(element(kind=9)), Unavailable)
    assert isinstance(results.field(element(kind=1, uiVal=5), only=results.ULL), Unavailable)
    assert results.field(element(ullVal=5), only=results.ULL) == 5


@pytest.mark.parametrize("value", [2**32 - 1, 2**64 - 1, 2**63])
def test_no_value_is_never_a_large_number(value: int) -> None:
    """All bits set, and what the contract cannot hold, are reasons."""
    assert isinstance(results.whole(value), Unavailable)


def test_distances_below_zero_survive_an_unsigned_type() -> None:
    """-7 °C handed over as unsigned 32-bit is still -7."""
    assert results.signed(2**32 - 7) == -7
    assert results.signed(49) == 49


@pytest.mark.parametrize(
    "version", ["c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t", "c_nvmlGpuFabricInfo_t"]
)
def test_fabric_reads_from_every_version_of_the_structure(version: str) -> None:
    """What an older structure does not have is a reason, the rest has its value."""
    info = getattr(pynvml, version)()
    info.state, info.cliqueId = 3, 7
    info.clusterUuid[0] = 0xAB
    read = results.fabric(info)
    assert (read.state, read.clique, read.status) == (3, 7, 0)
    assert read.cluster_uuid == "ab000000-0000-0000-0000-000000000000"
    assert isinstance(read.health_summary, Unavailable) == (not version.endswith("_v3_t"))


def test_the_table_of_error_names_is_the_bindings() -> None:
    """Every NVML_ERROR_* of pynvml has its name in the table, and no other."""
    theirs = {value: name for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")}
    assert theirs == results.NAMES
    assert results.name_of(4242) == "NVML return 4242"
