"""The role `join_gate`: a kubelet's files get the registration taint and labels, and lose them again."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from nodegauge_operator import names
from support.playbook import Ansible, Played, stage

OURS = f"{names.TAINT_UNVALIDATED}=:NoSchedule"
HEADER = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
OTHER = {"key": "team", "value": "ml", "effect": "NoExecute"}
GATE = {"key": names.TAINT_UNVALIDATED, "effect": "NoSchedule"}
Filters = dict[str, Callable[..., Any]]


@pytest.fixture(scope="module")
def filters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filters]:
    """The role's filters, from a staged collection."""
    folder = tmp_path_factory.mktemp("filters")
    stage(folder)
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module("ansible_collections.nodegauge.gpu.plugins.filter.join_gate")
        yield module.FilterModule().filters()
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            if name.startswith("ansible_collections"):
                del sys.modules[name]


CONFIGURATIONS = {
    "no list": HEADER + "# keep\nmaxPods: 110  # as the plan says\n",
    "kubeadm's null": HEADER + "registerWithTaints: null\nmaxPods: 110\n",
    "an empty value": HEADER + "registerWithTaints:\nmaxPods: 110\n",
    "an empty list": HEADER + "registerWithTaints: []  # none\n",
    "a flow list": HEADER + "registerWithTaints: [{key: team, value: ml, effect: NoExecute}]\n",
    "a block list": HEADER
    + "registerWithTaints:\n# ours\n- key: team\n  value: ml\n  effect: NoExecute\n# next\nmaxPods: 110\n",
    "an indented block": HEADER
    + "registerWithTaints:\n    - {key: team, value: ml, effect: NoExecute}\nmaxPods: 9\n",
    "CRLF": (HEADER + "maxPods: 110\n").replace("\n", "\r\n"),
    "JSON": json.dumps({"kind": "KubeletConfiguration", "registerWithTaints": [OTHER], "maxPods": 110}),
    "JSON without": json.dumps({"kind": "KubeletConfiguration", "maxPods": 110}, indent=2),
    "no newline at the end": HEADER + "maxPods: 110",
    "a document's marks": f"---\n# made by hand\n{HEADER}...\n",
}


@pytest.mark.parametrize("text", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_a_configuration_gets_the_taint_keeps_everything_else_and_loses_it_again(
    filters: Filters, text: str
) -> None:
    """All else is equal as data, no comment is lost, and a second time changes nothing."""
    gate, before = filters["kubelet_config_gate"], yaml.safe_load(text)
    others = before.pop("registerWithTaints", None) or []
    closed = gate(text)
    after = yaml.safe_load(closed)
    assert sorted(after.pop("registerWithTaints"), key=str) == sorted([GATE, *others], key=str)
    assert after == before
    assert [line for line in text.splitlines() if line.partition("#")[2] not in closed] == []
    assert gate(closed) == closed
    opened = yaml.safe_load(gate(closed, "absent"))
    assert (opened.pop("registerWithTaints", None) or [], opened) == (others, before)
    assert gate(text, "absent") == text
    assert ("\r\n" in closed, closed.count("\n")) == (
        "\r\n" in text,
        closed.count("\r\n" if "\r" in text else "\n"),
    )


def test_a_block_configuration_is_byte_for_byte_the_same_after_the_taint_came_and_went(
    filters: Filters,
) -> None:
    """Comments, indentation and line ends come back as they were."""
    gate = filters["kubelet_config_gate"]
    for name in ("no list", "a block list", "an indented block", "CRLF", "a document's marks"):
        assert gate(gate(CONFIGURATIONS[name]), "absent") == CONFIGURATIONS[name], name


@pytest.mark.parametrize(("effect", "kept"), [("NoExecute", True), ("PreferNoSchedule", False)])
def test_a_taint_of_ours_stays_where_it_closes_the_node(filters: Filters, effect: str, kept: bool) -> None:
    """NoExecute closes a node too; PreferNoSchedule does not, and is replaced."""
    text = HEADER + f"registerWithTaints:\n- key: {names.TAINT_UNVALIDATED}\n  effect: {effect}\n"
    [taint] = yaml.safe_load(filters["kubelet_config_gate"](text))["registerWithTaints"]
    assert taint["effect"] == (effect if kept else "NoSchedule")
    flags = f"KUBELET_EXTRA_ARGS=--register-with-taints={names.TAINT_UNVALIDATED}:{effect}\n"
    assert (filters["kubelet_flags_gate"](flags) == flags) is kept


@pytest.mark.parametrize(
    "text", ["", "# empty\n", "kind: Pod\n", "a: [\n", HEADER + "registerWithTaints: yes\n"]
)
def test_what_is_no_kubelet_configuration_is_refused(filters: Filters, text: str) -> None:
    """Empty, broken or another kind: the file stays as it is."""
    with pytest.raises(Exception, match="KubeletConfiguration"):
        filters["kubelet_config_gate"](text)


FLAGS = {
    "kubeadm's package": "KUBELET_EXTRA_ARGS=\n",
    "unquoted": "# flags\nKUBELET_EXTRA_ARGS=--node-ip=10.0.0.1 --v=2\n",
    "double quotes": 'OTHER=1\nKUBELET_EXTRA_ARGS="--v=2"\n',
    "single quotes": "KUBELET_EXTRA_ARGS='--v=2 --node-labels=rack=r1'\nMORE=x\n",
    "continued": 'KUBELET_EXTRA_ARGS="--v=2 \\\n  --node-ip=10.0.0.1"\n',
    "quotes inside": "KUBELET_EXTRA_ARGS=--foo='a b' --v=2\n",
    "escaped quotes": 'KUBELET_EXTRA_ARGS="--foo=\\"a b\\" --v=2"\n',
    "CRLF": "KUBELET_EXTRA_ARGS=--v=2\r\n",
    "taints": "KUBELET_EXTRA_ARGS=--register-with-taints=team=ml:NoExecute\n",
    "a word of its own": "KUBELET_EXTRA_ARGS=--register-with-taints team=ml:NoExecute --v=2\n",
    "the variable twice": "KUBELET_EXTRA_ARGS=--v=1\nKUBELET_EXTRA_ARGS=--v=2\n",
    "commented out": "#KUBELET_EXTRA_ARGS=--register-with-taints=a=b:NoSchedule\nKUBELET_EXTRA_ARGS=--v=2\n",
    "several flags": "KUBELET_EXTRA_ARGS=--register-with-taints=lost=:NoSchedule"
    " --register-with-taints=team=ml:NoExecute\n",
}


@pytest.mark.parametrize("text", FLAGS.values(), ids=FLAGS)
def test_flags_get_taint_and_labels_keep_the_rest_and_lose_them_again(filters: Filters, text: str) -> None:
    """Whatever the quotes; the last flag of the last assignment counts."""
    gate, labels = filters["kubelet_flags_gate"], {"gpu": "h100"}
    closed = gate(text, labels=labels)
    arguments = closed.replace("=", " ").replace(",", " ").replace('"', " ").split()
    assert closed.count(OURS) == 1
    assert closed.count("gpu=h100") == 1
    assert {"--register-with-taints", "--node-labels"} <= set(arguments)
    assert gate(closed, labels=labels) == closed
    assert gate(text, "absent", labels=labels) == text
    assert _plain(gate(closed, "absent", labels=labels)) == _plain(text)
    if "team" in text:
        assert f"--register-with-taints=team=ml:NoExecute,{OURS}" in closed
    if "rack" in text:
        assert "--node-labels=rack=r1,gpu=h100 " in closed


def _plain(text: str) -> str:
    """Without quotes around a value, and with flags written in one way."""
    return text.replace('"', "").replace("--register-with-taints ", "--register-with-taints=")


def test_a_file_without_the_variable_gets_a_line(filters: Filters) -> None:
    """Also an empty file, and one without a newline at its end."""
    gate = filters["kubelet_flags_gate"]
    line = f'KUBELET_EXTRA_ARGS="--register-with-taints={OURS}"\n'
    assert gate("") == line
    assert gate("A=1") == f"A=1\n{line}"
    assert gate("", "absent") == ""


def test_a_quote_that_is_not_closed_is_refused(filters: Filters) -> None:
    """The message names the line."""
    with pytest.raises(Exception, match="line 2 sets KUBELET_EXTRA_ARGS, and a quote"):
        filters["kubelet_flags_gate"]('A=1\nKUBELET_EXTRA_ARGS="--v=2\n')


def test_taints_that_the_flag_would_override_are_repeated(filters: Filters) -> None:
    """Kubeadm's before the KubeletConfiguration's, and those that the user names."""
    gate = filters["kubelet_flags_gate"]
    kubeadm = 'KUBELET_KUBEADM_ARGS="--register-with-taints=a=b:NoSchedule --v=1"\n'
    config = HEADER + "registerWithTaints:\n- {key: c, effect: NoSchedule}\n"
    assert f"=a=b:NoSchedule,{OURS}" in gate("", kubeadm_flags=kubeadm, config=config)
    assert f"=c=:NoSchedule,{OURS}" in gate("", config=config)
    assert f"=d=:NoSchedule,{OURS}" in gate("", other_taints=["d=:NoSchedule"])


def test_a_label_that_is_set_already_is_replaced_by_the_last_flag(filters: Filters) -> None:
    """Labels of several flags add up, so a label that is right is not repeated."""
    gate = filters["kubelet_flags_gate"]
    text = "KUBELET_EXTRA_ARGS=--node-labels=gpu=a100,rack=r1 --node-labels=row=7\n"
    closed = gate(text, labels={"gpu": "h100", "rack": "r1"})
    assert "--node-labels=gpu=a100,rack=r1 --node-labels=row=7,gpu=h100 " in closed


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("kubernetes.io/role", "gpu", "NodeRestriction"),
        ("node-role.kubernetes.io/gpu", "", "NodeRestriction"),
        ("node-restriction.kubernetes.io/a", "b", "NodeRestriction"),
        ("feature.k8s.io/a", "b", "NodeRestriction"),
        ("nodegauge.dev/health", "pass", "operator"),
        ("interconnect", "nvlink", "operator"),
        ("gpu", True, "Quote"),
        ("a b", "c", "name"),
        ("gpu", "h100,zone=x", "value"),
    ],
)
def test_labels_that_a_kubelet_must_not_set_are_refused(
    filters: Filters, key: str, value: Any, why: str
) -> None:
    """The reason names the label."""
    [reason] = filters["refused_node_labels"]({key: value})
    assert key in reason
    assert why in reason


@pytest.mark.parametrize(
    "key",
    [
        "gpu",
        "example.com/rack",
        "node.kubernetes.io/pool",
        "a.node.kubernetes.io/b",
        "topology.kubernetes.io/zone",
    ],
)
def test_labels_that_a_kubelet_may_set_are_taken(filters: Filters, key: str) -> None:
    """Those that the kubelet itself allows, and any other domain."""
    assert filters["refused_node_labels"]({key: "r1"}) == []


def join_gate(ansible: Ansible, *options: str, **role: Any) -> Played:
    run = {"ansible.builtin.include_role": {"name": "nodegauge.gpu.join_gate"}}
    play = {"hosts": "all", "gather_facts": False, "tasks": [{"name": "run", **run, "vars": _prefixed(role)}]}
    return ansible.play([play], {"host": {}}, *options)


def _prefixed(role: dict[str, Any]) -> dict[str, Any]:
    return {f"join_gate_{name}": value for name, value in role.items()}


def test_the_role_closes_a_kubelet_by_its_flags_once_and_check_mode_changes_nothing(ansible: Ansible) -> None:
    """Mode and symlink stay, and the taint goes again without a trace."""
    file, link = ansible.folder / "real", ansible.folder / "flags"
    file.write_text("# by hand\r\nKUBELET_EXTRA_ARGS='--v=2'\r\n", newline="")
    file.chmod(0o640)
    link.symlink_to(file)
    role: dict[str, Any] = {"method": "kubeadm", "flags_file": str(link), "labels": {"gpu": "h100"}}
    before = file.read_bytes()
    checked = join_gate(ansible, "--check", "--diff", **role)
    assert (checked.code, len(checked.changed), file.read_bytes()) == (0, 1, before), checked.output
    flags = f"--v=2 --register-with-taints={OURS} --node-labels=gpu=h100"
    assert f"+KUBELET_EXTRA_ARGS='{flags}'" in checked.output
    done = join_gate(ansible, backup=True, **role)
    assert (done.code, len(done.changed), link.is_symlink()) == (0, 1, True), done.output
    assert f"'{flags}'\r\n".encode() in file.read_bytes()
    assert file.stat().st_mode & 0o777 == 0o640
    assert len(list(ansible.folder.glob("*~"))) == 1
    assert not join_gate(ansible, **role).changed
    assert join_gate(ansible, state="absent", **role).code == 0
    assert file.read_bytes() == before


def test_the_role_closes_a_kubelet_by_its_configuration(ansible: Ansible) -> None:
    """JSON stays JSON, and labels are refused, which this file cannot have."""
    file = ansible.folder / "kubelet.json"
    file.write_text(json.dumps({"kind": "KubeletConfiguration", "maxPods": 110}))
    role = {"method": "kubelet", "config_file": str(file), "flags_file": str(ansible.folder / "none")}
    before = file.read_text()
    done = join_gate(ansible, **role)
    assert (done.code, len(done.changed)) == (0, 1), done.output
    assert file.read_text() == before.replace("{", '{"registerWithTaints": [' + json.dumps(GATE) + "], ", 1)
    assert not join_gate(ansible, **role).changed
    labelled = join_gate(ansible, labels={"gpu": "h100"}, **role)
    assert labelled.code != 0
    assert "has no labels" in labelled.output


def test_the_role_refuses_a_label_before_it_changes_anything(ansible: Ansible) -> None:
    """No file is written."""
    file = ansible.folder / "flags"
    played = join_gate(
        ansible, method="kubeadm", flags_file=str(file), labels={"node-role.kubernetes.io/gpu": "a"}
    )
    assert played.code != 0
    assert "NodeRestriction" in played.output
    assert not file.exists()


def test_no_kubelet_is_a_message_and_absent_makes_no_file(ansible: Ansible) -> None:
    """The message says which option to set."""
    missing = str(ansible.folder / "config.yaml")
    played = join_gate(ansible, method="kubelet", config_file=missing)
    assert played.code != 0
    assert "Set join_gate_config_file" in played.output
    flags = ansible.folder / "flags"
    assert not join_gate(ansible, state="absent", method="kubeadm", flags_file=str(flags)).changed
    assert not flags.exists()


@pytest.mark.parametrize("labels", [{}, {"gpu": "h100", "rack": "7"}])
def test_the_file_for_k3s_and_rke2_appends_taint_and_labels(ansible: Ansible, labels: dict[str, str]) -> None:
    """The `+` of the keys keeps what other files set."""
    role = ansible.folder / "ansible_collections/nodegauge/gpu/roles/join_gate"
    written = ansible.folder / "etc" / "config.yaml.d" / "99-nodegauge.yaml"
    values = role / "vars" / "main.yml"
    values.write_text(
        values.read_text().replace('"/etc/rancher/{{ __join_gate_kind }}/', f'"{ansible.folder}/etc/')
    )
    for change in (1, 0):
        played = join_gate(ansible, method="rke2", labels=labels)
        assert (played.code, bool(played.changed)) == (0, bool(change)), played.output
    wanted: dict[str, Any] = {"node-taint+": [OURS]}
    if labels:
        wanted["node-label+"] = ["gpu=h100", "rack=7"]
    assert yaml.safe_load(written.read_text()) == wanted
    assert join_gate(ansible, method="rke2", state="absent").code == 0
    assert not written.exists()
