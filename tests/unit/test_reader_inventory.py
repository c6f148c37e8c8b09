"""The inventory of BMCs: files as people and Ansible write them, and what each mistake is answered with."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodegauge_operator.bmc_reader.inventory import Entry, Inventory, Plan

NODES = {"gpu-1": "u1", "gpu-2": "u2", "gpu-3.example.com": "u3"}
SECRET = "s3cret-of-the-bmc"
LOGIN = {"username": "reader", "password": SECRET}


def plan(folder: Path, selected: frozenset[str] = frozenset(NODES), **files: Any) -> Plan:
    """What follows from files with these names; texts are written as they are, `__` is a dot."""
    for name, content in files.items():
        text = content if isinstance(content, str) else yaml.safe_dump(content)
        (folder / name.replace("__", ".").replace("gpu_", "gpu-")).write_text(text)
    inventory = Inventory(folder)
    inventory.changed()
    result = inventory.plan(NODES, selected=selected, timeout=3.0)
    assert SECRET not in repr(result)
    assert SECRET not in str([*result.problems.values(), *result.unused])
    return result


def test_a_file_per_node_and_a_pattern_for_the_rest(tmp_path: Path) -> None:
    """A node's own file wins over the pattern field by field; JSON is YAML."""
    result = plan(
        tmp_path,
        _defaults={"url": "https://{short}-bmc.example.com", **LOGIN, "insecure": True},
        gpu_1__json='{"url": "https://10.0.0.7:8443/", "fingerprint": "' + "ab" * 32 + '"}',
    )
    access = {node: target.access for node, target in result.targets.items()}
    assert result.problems == {}
    assert access["gpu-1"].url == "https://10.0.0.7:8443"
    first = access["gpu-1"]
    assert (first.insecure, first.password, first.timeout) == (False, SECRET, 3.0)
    assert access["gpu-3.example.com"].url == "https://gpu-3-bmc.example.com"
    assert access["gpu-3.example.com"].insecure


def test_a_pattern_applies_to_selected_nodes_alone(tmp_path: Path) -> None:
    """A control-plane node without GPUs is not asked for."""
    result = plan(tmp_path, frozenset({"gpu-2"}), _defaults={"url": "https://{node}-bmc", **LOGIN})
    assert list(result.targets) == ["gpu-2"]


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (f"url: https://a\npassword: {SECRET}", "username: missing"),
        ("url: https://a\nusername: reader", "password: missing"),
        ("username: a\npassword: b", "url: missing; write https://HOST"),
        ("url: https://a\nusername: r\npassword: 12345678", "password: of the wrong type"),
        (f"url: https://a\npasword: {SECRET}", "pasword: no such field; the fields are url"),
        (f"url: https://a\npassword: [{SECRET}", "no YAML from line"),
        (f"- {SECRET}", "no fields"),
        ("", "no fields"),
        (f"url: https://r:{SECRET}@a", "contains a user or a password"),
        ("url: http://a", "insecure"),
        ("url: https://a\nca: other.pem", "ca: no such file"),
        ("url: https://a\nca: ../../etc/passwd", "ca: no such file"),
        ("x" * 70_000, "more than 65536 bytes"),
        ("\x00", "no YAML"),
    ],
)
def test_a_wrong_file_names_field_and_way_out_and_costs_its_node_alone(
    content: str, part: str, tmp_path: Path
) -> None:
    result = plan(tmp_path, gpu_1=content, gpu_2={"url": "https://good", **LOGIN})
    assert part in result.problems["gpu-1"]
    assert result.problems["gpu-1"].startswith("gpu-1")
    assert "--" not in result.problems["gpu-1"]
    assert list(result.targets) == ["gpu-2"]


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("IPMI://10.0.0.7:623", "ipmi://10.0.0.7"),
        ("ipmi://[fd00::7]:6623/", "ipmi://[fd00::7]:6623"),
        ("auto://bmc:8443/", "auto://bmc:8443"),
        ("bmc-7", "https://bmc-7"),
    ],
)
def test_the_scheme_names_the_protocol(url: str, address: str, tmp_path: Path) -> None:
    """IPMI has no certificates; what the defaults say about TLS does not stand in its way."""
    for tls in ({"ca": "ca.pem"}, {"insecure": True}):
        result = plan(tmp_path, _defaults=tls | LOGIN, gpu_1={"url": url}, ca__pem="bundle")
        access = result.targets["gpu-1"].access
        assert access.url == address
        assert (bool(access.ca) or access.insecure) == (not address.startswith("ipmi"))


def test_two_files_for_one_node_and_two_nodes_with_one_bmc_are_refused(tmp_path: Path) -> None:
    """Which one is right nobody knows: a wrong guess would judge a node by another machine."""
    twice = plan(tmp_path, gpu_1={"url": "https://a"}, gpu_1__yaml={"url": "https://b"})
    assert "another file for the node gpu-1" in twice.problems["gpu-1"]
    (tmp_path / "gpu-1.yaml").unlink()
    for url in ("https://A", "ipmi://a"):
        shared = plan(tmp_path, gpu_1={"url": "https://a"} | LOGIN, gpu_2={"url": url} | LOGIN)
        assert (shared.targets, set(shared.problems)) == ({}, {"gpu-1", "gpu-2"})
        assert "several nodes" in shared.problems["gpu-2"]


def test_files_without_a_node_are_named_and_nothing_else(tmp_path: Path) -> None:
    """A node that is gone, a name that no node can have; CA bundles are no entries."""
    own = {"url": "https://b", "ca": "ca.pem"}
    result = plan(tmp_path, gone={"url": "https://a"}, README_FIRST="read me", ca__pem="bundle", gpu_1=own)
    assert [text.partition(":")[0] for text in result.unused] == ["README_FIRST", "gone"]
    assert result.targets["gpu-1"].access.ca == str(tmp_path / "ca.pem")


def test_wrong_defaults_are_said_for_every_node_that_needs_them(tmp_path: Path) -> None:
    result = plan(tmp_path, _defaults="url: [", gpu_1={"url": "https://a"})
    assert set(result.problems) == set(NODES)
    assert result.targets == {}


def test_only_changed_files_are_read_again(tmp_path: Path) -> None:
    """As a kubelet changes a mounted Secret: a new folder behind a link."""
    for version in ("one", "two"):
        (tmp_path / f"..{version}").mkdir()
        (tmp_path / f"..{version}" / "gpu-1").write_text(f"url: https://{version}")
    (tmp_path / "..data").symlink_to("..one")
    (tmp_path / "gpu-1").symlink_to("..data/gpu-1")
    inventory = Inventory(tmp_path)
    assert [inventory.changed(), inventory.changed()] == [True, False]
    (tmp_path / "..next").symlink_to("..two")
    (tmp_path / "..next").rename(tmp_path / "..data")
    assert inventory.changed()
    assert inventory.plan(NODES, selected=frozenset(), timeout=1).targets["gpu-1"].address == "https://two"


def test_an_entry_shows_no_secret() -> None:
    entry = Entry(url="https://a", username="reader", password=SECRET)
    assert SECRET not in repr(entry) + str(entry) + str(list(entry.__rich_repr__()))
    assert pickle.loads(pickle.dumps(entry)) == entry
