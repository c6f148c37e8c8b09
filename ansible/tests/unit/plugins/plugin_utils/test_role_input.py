"""Which variables each role of the collection refuses."""

from __future__ import annotations

import pytest
from ansible_collections.nodegauge.gpu.plugins.plugin_utils import role_input


@pytest.mark.parametrize(
    ("role", "typed", "nearest"),
    [
        ("validate", "validate_expcted_gpus", "validate_expected_gpus"),
        ("validate", "validate_bmc_usrname", "validate_bmc_username"),
        ("report", "report_tilte", "report_title"),
        ("join_gate", "join_gate_lables", "join_gate_labels"),
        ("operator", "operator_value", "operator_values"),
        ("bmc_inventory", "bmc_inventory_certificate", "bmc_inventory_certificates"),
    ],
)
def test_a_misspelt_variable_is_refused_with_the_nearest_name(role, typed, nearest):
    """A name that was listed as another's, and those of other roles, are none of this role's."""
    spec = role_input.specification(role)
    (sentence,) = role_input.unknown(role, [typed, nearest, "inventory_dir", "other_role_x"], spec)
    assert sentence.startswith(f"{typed}: ")
    assert f"did you mean {nearest}?" in sentence
    assert role_input.unknown(role, [typed], spec, [typed]) == []


@pytest.mark.parametrize(
    ("value", "refused"), [(8, False), ("8", False), ("eight", True), (-1, True), ([], True)]
)
def test_a_value_that_is_no_number_of_gpus_is_refused(value, refused):
    """Ansible's own conversions count."""
    spec = role_input.specification("validate")
    assert bool(role_input.mistyped(spec, {"validate_expected_gpus": value})) == refused


def test_a_line_names_three_hosts_and_counts_the_others():
    """What all hosts have in common is said once."""
    hosts = [f"gpu-{number}" for number in range(5)]
    lines = role_input.grouped({**{host: ["a"] for host in hosts}, "": ["b"], "gpu-9": ["c"]}, 5)
    assert lines == ["all 5 hosts: a", "the play: b", "gpu-9: c"]
    assert role_input.grouped({host: ["a"] for host in hosts}, 6) == ["gpu-0, gpu-1, gpu-2 and 2 more: a"]
