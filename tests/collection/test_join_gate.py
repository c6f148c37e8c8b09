"""The role `join_gate`: a kubelet's files get the registration taint and labels, and lose them again."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
import yaml

from nodegauge_operator import names
from support.playbook import Ansible, Played, stage

OURS = f"{names.TAINT_UNVALIDATED}=:NoSchedule"
HEADER = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
GATE = {"key": names.TAINT_UNVALIDATED, "effect": "NoSchedule"}
Filters = dict[str, Callable[..., Any]]


@pytest.fixture
def filters(plugin: Any) -> Filters:
    filters: Filters = plugin("filter.join_gate").FilterModule().filters()
    return filters


FILES = yaml.safe_load(Path(__file__).with_name("kubelet-files.yaml").read_text("utf-8"))
CONFIGURATIONS, FLAGS, KUBEADM = FILES["configurations"], FILES["flags"], FILES["kubeadm"]
BLOCKS = ("no list", "a block list", "an indented block", "CRLF", "a document's marks")
"""Those that come back byte for byte: comments, indentation and line ends."""


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_configuration_gets_the_taint_keeps_everything_else_and_loses_it_again(
    filters: Filters, name: str
) -> None:
    text = CONFIGURATIONS[name]
    gate, before = filters["kubelet_config_gate"], yaml.safe_load(text)
    others = before.pop("registerWithTaints", None) or []
    closed = gate(text)
    after = yaml.safe_load(closed)
    assert sorted(after.pop("registerWithTaints"), key=str) == sorted([GATE, *others], key=str)
    assert after == before
    assert [line for line in text.splitlines() if line.partition("#")[2] not in closed] == []
    assert gate(closed) == closed
    assert gate(closed, "absent") == text or name not in BLOCKS
    opened = yaml.safe_load(gate(closed, "absent"))
    assert (opened.pop("registerWithTaints", None) or [], opened) == (others, before)
    assert gate(text, "absent") == text
    assert ("\r\n" in closed, closed.count("\n")) == (
        "\r\n" in text,
        closed.count("\r\n" if "\r" in text else "\n"),
    )


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
    with pytest.raises(Exception, match="KubeletConfiguration"):
        filters["kubelet_config_gate"](text)


@pytest.mark.parametrize("text", FLAGS.values(), ids=FLAGS)
def test_flags_get_taint_and_labels_keep_the_rest_and_lose_them_again(filters: Filters, text: str) -> None:
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
        ("gpu", "r1", ""),
        ("example.com/rack", "r1", ""),
        ("node.kubernetes.io/pool", "r1", ""),
        ("a.node.kubernetes.io/b", "r1", ""),
        ("topology.kubernetes.io/zone", "r1", ""),
    ],
)
def test_a_label_that_a_kubelet_must_not_set_is_refused(
    filters: Filters, key: str, value: Any, why: str
) -> None:
    """Those that the kubelet itself allows are taken, and any other domain."""
    reasons = filters["refused_node_labels"]({key: value})
    assert len(reasons) == bool(why)
    assert all(key in reason and why in reason for reason in reasons)


V3, V4 = (f"apiVersion: kubeadm.k8s.io/v1beta{version}\n" for version in (3, 4))
JOIN = "kind: JoinConfiguration\n"


@pytest.mark.parametrize("name", KUBEADM)
def test_a_file_for_kubeadm_gets_taint_and_labels_and_loses_them_again(filters: Filters, name: str) -> None:
    """Other documents and comments stay."""
    text, taints = KUBEADM[name].values()
    gate, labels = filters["kubeadm_config_gate"], {"gpu": "h100"}
    closed = gate(text, labels=labels)
    before, after = ([*yaml.safe_load_all(each)] for each in (text, closed))
    registration = after[0].pop("nodeRegistration")
    assert registration.pop("taints") == taints
    arguments = registration.pop("kubeletExtraArgs")
    listed = arguments if isinstance(arguments, dict) else {each["name"]: each["value"] for each in arguments}
    assert isinstance(arguments, list) == ("v1beta4" in text)
    given = "rack=r1," if "rack" in text else ""
    assert listed == {"node-labels": f"{given}gpu=h100"} | ({"v": "2"} if given else {})
    kept = before[0].pop("nodeRegistration", None) or {}
    assert (registration, after) == ({k: kept[k] for k in kept if k == "name"}, before)
    assert [line for line in text.splitlines() if line.partition("#")[2] not in closed] == []
    assert (gate(closed, labels=labels), gate(text, "absent")) == (closed, text if name != "closed" else ANY)
    opened = next(yaml.safe_load_all(gate(closed, "absent", labels=labels)))["nodeRegistration"]
    assert opened["taints"] == [taint for taint in taints if taint["key"] != names.TAINT_UNVALIDATED]
    assert given.rstrip(",") in str(opened["kubeletExtraArgs"])


@pytest.mark.parametrize("version", [V3, V4])
def test_an_argument_of_the_kubelet_overrides_the_taints_of_kubeadm(filters: Filters, version: str) -> None:
    """So it is what gets ours, in either shape."""
    flag = ("register-with-taints", "a=b:NoSchedule")
    shapes = {V3: dict([flag]), V4: [dict(zip(("name", "value"), flag, strict=True))]}
    text = version + JOIN + f"nodeRegistration:\n  kubeletExtraArgs: {json.dumps(shapes[version])}\n"
    closed = filters["kubeadm_config_gate"](text)
    assert closed == text.replace(flag[1], f"{flag[1]},{OURS}")
    assert filters["kubeadm_config_gate"](closed, "absent") == text


@pytest.mark.parametrize(
    ("gate", "text", "why"),
    [
        ("kubeadm_config_gate", V4 + JOIN + "nodeRegistration: [\n", "x.yaml: line 4: no YAML"),
        ("kubeadm_config_gate", V4.replace("4", "2") + JOIN, r"x.yaml: .*kubeadm config migrate"),
        ("kubeadm_config_gate", HEADER, "x.yaml has no JoinConfiguration"),
        (
            "kubeadm_config_gate",
            V4 + JOIN + "nodeRegistration: {kubeletExtraArgs: {v: '2'}}\n",
            r"x.yaml: .*kubeletExtraArgs of the JoinConfiguration",
        ),
        (
            "kubeadm_config_gate",
            V4 + JOIN + "nodeRegistration: &a {taints: &b [{key: c, effect: NoSchedule}]}\nother: *b\n",
            "x.yaml cannot be edited safely",
        ),
        ("kubelet_config_gate", HEADER + "a:\n\t- b\n", "x.yaml: line 4: no YAML"),
    ],
)
def test_a_file_that_cannot_be_edited_is_named_with_its_line(
    filters: Filters, gate: str, text: str, why: str
) -> None:
    with pytest.raises(Exception, match=why):
        filters[gate](text, name="x.yaml")


OWN = "/etc/rancher/k3s/config.yaml.d/99-nodegauge.yaml"
MAIN, EARLY, LATE = (
    "/etc/rancher/k3s/" + name for name in ("config.yaml", "config.yaml.d/10-a.yaml", "config.yaml.d/zz.yml")
)
TAINT = {"node-taint+": [OURS]}
LABEL = {"node-label+": ["gpu=h100"]}


@pytest.mark.parametrize(
    ("files", "written"),
    [
        ({}, TAINT | LABEL),
        ({MAIN: "token: s3cret\nnode-taint:\n  - team=ml:NoExecute\n"}, TAINT | LABEL),
        ({MAIN: f"node-taint:\n  - {OURS}\n"}, LABEL),
        ({MAIN: f"node-taint: {OURS}\nnode-label: [gpu=h100]\n", OWN: "node-taint+: [x]\n"}, {}),
        ({MAIN: f"node-taint: [{OURS}]\n", EARLY: "node-taint: [a=b:NoSchedule]\n"}, TAINT | LABEL),
        ({MAIN: f"node-taint: [{OURS}]\n", EARLY: "node-taint+: [a=b:NoSchedule]\n"}, LABEL),
        ({MAIN: "node-label: gpu=a100\n"}, TAINT | LABEL),
        ({LATE: "node-taint+: [a=b:NoSchedule]\n"}, TAINT | LABEL),
        (
            {LATE: "node-taint: [a=b:NoSchedule]\n"},
            "zz.yml is read after 99-nodegauge.yaml and sets node-taint",
        ),
        ({LATE: "node-label+: [gpu=a100]\n"}, "zz.yml is read after 99-nodegauge.yaml and sets node-label"),
        ({MAIN: "token: a: b\n"}, "config.yaml: line 1: no YAML"),
        ({EARLY: "- node-taint\n"}, "a.yaml: line 1: no mapping"),
    ],
)
def test_the_file_for_k3s_and_rke2_has_what_the_others_lack(
    filters: Filters, files: Any, written: Any
) -> None:
    """A kubelet does not start with a taint that is there twice; a later file may replace the whole list."""
    gate = filters["rancher_config_gate"]
    if isinstance(written, str):
        with pytest.raises(Exception, match=re.escape(written)):
            gate(files, OWN, labels={"gpu": "h100"})
        return
    text = gate(files, OWN, labels={"gpu": "h100"})
    assert (yaml.safe_load(text) or {}) == written
    assert gate({**files, OWN: text}, OWN, labels={"gpu": "h100"}) == text
    if OURS in files.get(MAIN, "") and EARLY not in files:
        with pytest.raises(Exception, match=r"config.yaml sets .* Remove it there"):
            gate(files, OWN, "absent")


LABELS = {"gpu": "h100", "rack": "7"}
HOSTS: dict[str, dict[str, Any]] = {
    "flags": {"method": "kubeadm", "labels": {"gpu": "h100"}, "backup": True},
    "config": {"method": "kubelet"},
    "labels-in-a-file": {"method": "kubelet", "labels": {"gpu": "h100"}},
    "wrong-label": {"method": "kubeadm", "labels": {"node-role.kubernetes.io/gpu": "a"}},
    "no-kubelet": {"method": "kubelet"},
    "open": {"method": "kubeadm", "state": "absent"},
    "rke2": {"method": "rke2"},
    "rke2-labels": {"method": "rke2", "labels": LABELS},
    "k3s-broken": {"method": "k3s"},
    "join-file": {"kubeadm_config": True, "labels": {"gpu": "h100"}},
    "join-broken": {"kubeadm_config": True},
}
REFUSED = {
    "labels-in-a-file": "has no labels",
    "wrong-label": "NodeRestriction",
    "no-kubelet": "Set join_gate_config_file",
    "k3s-broken": "k3s-broken/config.yaml: line 3: no YAML",
    "join-broken": "join-broken/join: line 4: no YAML",
}
WRITTEN = {"flags", "config", "rke2", "rke2-labels", "join-file"}
DROPIN = "config.yaml.d/99-nodegauge.yaml"
CLOSED = ("--limit", ",".join(sorted(WRITTEN)))
PLAYS = {
    "checked": ("present", "--check", "--diff", *CLOSED),
    "first": ("present",),
    "second": ("present", *CLOSED),
    "last": ("absent", *CLOSED),
}


@dataclass(frozen=True)
class Gated:
    """The plays on all hosts, and the hosts' files `before` them and after each."""

    plays: dict[str, Played]
    files: dict[str, dict[str, bytes]]

    def changed(self, play: str) -> set[str]:
        return {task.host for task in self.plays[play].changed}


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Gated:
    """The files are in a folder for each host; those of k3s and RKE2 are there too, instead of in /etc."""
    folder = tmp_path_factory.mktemp("hosts")
    values = stage(folder) / "roles/join_gate/vars/main.yml"
    own = f'"{folder}/{{{{ inventory_hostname }}}}/'
    values.write_text(values.read_text().replace('"/etc/rancher/{{ __join_gate_kind }}/', own))
    given = {}
    for name, role in HOSTS.items():
        (folder / name).mkdir()
        role = {f"{file}_file": str(folder / name / file) for file in ("flags", "config")} | role
        if role.get("kubeadm_config"):
            role["kubeadm_config"] = str(folder / name / "join")
            text = KUBEADM["taints"]["text"] if name == "join-file" else V4 + JOIN + "a: [\n"
            (folder / name / "join").write_text(text)
        given[name] = {f"join_gate_{option}": value for option, value in role.items()}
    (folder / "k3s-broken" / "config.yaml").write_text("token: x\nnode-taint: [\n")
    (folder / "rke2" / "config.yaml").write_text("token: s3cret\nnode-label: [a=b]\n")
    real = folder / "flags" / "real"
    real.write_bytes(b"# by hand\r\nKUBELET_EXTRA_ARGS='--v=2'\r\n")
    real.chmod(0o640)
    real.with_name("flags").symlink_to(real)
    for name in ("config", "labels-in-a-file"):
        (folder / name / "config").write_text(json.dumps({"kind": "KubeletConfiguration", "maxPods": 110}))

    def files() -> dict[str, bytes]:
        there = [path for name in HOSTS for path in (folder / name).rglob("*[!~]")]
        kept = [path for path in there if path.is_file() and not path.is_symlink()]
        return {str(path.relative_to(folder)): path.read_bytes() for path in kept}

    plays, seen, backups = {}, {"before": files()}, []
    run = {"ansible.builtin.include_role": {"name": "nodegauge.gpu.join_gate"}}
    for play, (state, *options) in PLAYS.items():
        hosts = {name: {"join_gate_state": state} | role for name, role in given.items()}
        tasks = [{"hosts": "all", "gather_facts": False, "tasks": [run]}]
        plays[play] = Ansible(folder).play(tasks, hosts, *options)
        seen[play] = files()
        assert real.with_name("flags").is_symlink()
        assert real.stat().st_mode & 0o777 == 0o640
        backups.append(len(list(real.parent.glob("*~"))))
    assert backups == [0, 1, 1, 2]
    assert not list((folder / "config").glob("*~"))
    return Gated(plays, seen)


def test_the_role_closes_kubelets_once_and_opens_them_again(gated: Gated, filters: Filters) -> None:
    """Check mode forecasts it and changes nothing; mode and symlink stay; the taint goes without a trace."""
    files, checked = gated.files, gated.plays["checked"]
    assert gated.changed("checked") >= {"flags", "config"}, checked.output
    assert [gated.changed(play) for play in ("first", "second", "last")] == [WRITTEN, set(), WRITTEN]
    assert files["checked"] == files["before"]
    flags = f"'--v=2 --register-with-taints={OURS} --node-labels=gpu=h100'"
    assert f"+KUBELET_EXTRA_ARGS={flags}" in checked.output
    assert flags.encode() + b"\r\n" in files["first"]["flags/real"]
    configuration = files["before"]["config/config"].decode()
    tainted = configuration.replace("{", '{"registerWithTaints": [' + json.dumps(GATE) + "], ", 1)
    assert files["first"]["config/config"].decode() == tainted, "JSON stays JSON"
    assert files["last"]["flags/real"] == files["before"]["flags/real"]
    assert files["last"].keys() == files["before"].keys(), "no file where there was none"
    assert (
        files["first"]["join-file/join"]
        == filters["kubeadm_config_gate"](KUBEADM["taints"]["text"], labels={"gpu": "h100"}).encode()
    )
    assert not [play for play in gated.plays.values() if "s3cret" in play.output]


def test_the_file_for_k3s_and_rke2_appends_taint_and_labels(gated: Gated) -> None:
    files = gated.files["first"]
    written = [yaml.safe_load(files[f"{name}/{DROPIN}"]) for name in ("rke2", "rke2-labels")]
    taint = {"node-taint+": [OURS]}
    assert written == [taint, taint | {"node-label+": ["gpu=h100", "rack=7"]}]


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_written_is_refused_and_no_file_changes(gated: Gated, name: str) -> None:
    tasks = gated.plays["first"].tasks
    [failed] = [task for task in tasks if (task.host, task.status) == (name, "failed")]
    assert REFUSED[name] in str(failed.result)
    after = gated.files["first"].items() - gated.files["before"].items()
    assert not [file for file, _ in after if file.startswith(f"{name}/")]
