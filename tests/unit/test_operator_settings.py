"""Settings: every default is usable, every bad value is named in one error."""

from __future__ import annotations

import re

import pytest

from nodegauge_operator.__main__ import main
from nodegauge_operator.settings import SettingsError, parse

NEEDED = {"POD_NAMESPACE": "nodegauge", "NODEGAUGE_PROBE_IMAGE": "localhost/nodegauge/probe:0.1.0"}


def test_two_variables_suffice() -> None:
    """The rest has defaults."""
    settings = parse(NEEDED)
    assert (settings.probe.namespace, settings.probe.image) == (
        "nodegauge",
        "localhost/nodegauge/probe:0.1.0",
    )
    assert settings.probe.nccl_image == "", "no benchmark where nobody names an image"
    assert (settings.workers, settings.api_rate, settings.api_burst) == (8, 100.0, 200)
    assert (settings.max_concurrent_probes, settings.max_concurrent_nccl_probes) == (200, 50)
    assert (settings.sweep_interval, settings.relist_interval) == (5.0, 600.0)
    assert (settings.log_level, settings.log_format, settings.http_port) == ("info", "json", 8080)
    assert settings.max_gated_nodes == "20%"


def test_every_variable_is_read() -> None:
    """Under its own name, with blanks around it or not."""
    settings = parse(
        NEEDED
        | {
            "POD_NAME": "operator-1",
            "NODEGAUGE_PROBE_IMAGE_PULL_POLICY": "Never",
            "NODEGAUGE_IMAGE_PULL_SECRETS": " a, b,, ",
            "NODEGAUGE_PROBE_PRIORITY_CLASS": "low",
            "NODEGAUGE_PROBE_RUNTIME_CLASS": "nvidia",
            "NODEGAUGE_PROBE_SERVICE_ACCOUNT": "probe",
            "NODEGAUGE_PROBE_LABELS": '{"team": "hpc"}',
            "NODEGAUGE_PROBE_ANNOTATIONS": ' {"a": "b"} ',
            "NODEGAUGE_PROBE_TOLERATIONS": '[{"key": "gpu", "operator": "Exists"}]',
            "NODEGAUGE_PROBE_RESOURCES": '{"limits": {"memory": "512Mi"}}',
            "NODEGAUGE_NCCL_IMAGE": " r.example.com:5000/nodegauge/nccl:0.1.0 ",
            "NODEGAUGE_NCCL_PRIORITY_CLASS": "lowest",
            "NODEGAUGE_NCCL_RESOURCES": '{"limits": {"memory": "32Gi"}}',
            "NODEGAUGE_INSTANCE": "release",
            "NODEGAUGE_HTTP_PORT": "0",
            "NODEGAUGE_HTTP_HOST": "127.0.0.1",
            "NODEGAUGE_NODE_LABEL_SELECTOR": "nvidia.com/gpu.present=true",
            "NODEGAUGE_API_RATE": "2.5",
            "NODEGAUGE_API_BURST": " 7 ",
            "NODEGAUGE_WORKERS": "64",
            "NODEGAUGE_MAX_CONCURRENT_PROBES": "500",
            "NODEGAUGE_MAX_CONCURRENT_NCCL_PROBES": "8",
            "NODEGAUGE_SWEEP_INTERVAL": "500ms",
            "NODEGAUGE_RELIST_INTERVAL": "1h30m",
            "NODEGAUGE_MAX_GATED_NODES": " 7 ",
            "NODEGAUGE_LOG_LEVEL": "debug",
            "NODEGAUGE_LOG_FORMAT": "text",
        }
    )
    probe = settings.probe
    assert (probe.image_pull_policy, probe.image_pull_secrets) == ("Never", ("a", "b"))
    assert (probe.labels, probe.annotations) == ({"team": "hpc"}, {"a": "b"})
    assert probe.tolerations == [{"key": "gpu", "operator": "Exists"}]
    assert probe.resources == {"limits": {"memory": "512Mi"}}
    assert (probe.nccl_image, probe.nccl_priority_class_name) == (
        "r.example.com:5000/nodegauge/nccl:0.1.0",
        "lowest",
    )
    assert probe.nccl_resources == {"limits": {"memory": "32Gi"}}
    assert (probe.priority_class_name, probe.runtime_class_name) == ("low", "nvidia")
    assert (probe.service_account_name, probe.instance) == ("probe", "release")
    assert (settings.instance, settings.http_port, settings.http_host) == ("operator-1", 0, "127.0.0.1")
    assert settings.node_label_selector == "nvidia.com/gpu.present=true"
    assert probe.nodes == [{"key": "nvidia.com/gpu.present", "operator": "In", "values": ["true"]}]
    assert (settings.api_rate, settings.api_burst, settings.workers) == (2.5, 7, 64)
    assert (settings.max_concurrent_probes, settings.max_concurrent_nccl_probes) == (500, 8)
    assert (settings.sweep_interval, settings.relist_interval) == (0.5, 5400.0)
    assert (settings.log_level, settings.log_format) == ("debug", "text")
    assert settings.max_gated_nodes == 7


BAD = {
    "POD_NAMESPACE": "  ",
    "NODEGAUGE_PROBE_IMAGE": "",
    "NODEGAUGE_NCCL_IMAGE": "nodegauge/nccl:0.1.0",
    "NODEGAUGE_PROBE_IMAGE_PULL_POLICY": "Sometimes",
    "NODEGAUGE_PROBE_LABELS": "team=hpc",
    "NODEGAUGE_PROBE_ANNOTATIONS": '{"a": 1}',
    "NODEGAUGE_PROBE_TOLERATIONS": '{"key": "gpu"}',
    "NODEGAUGE_PROBE_RESOURCES": '{"limits": "512Mi"}',
    "NODEGAUGE_HTTP_PORT": "65536",
    "NODEGAUGE_NODE_LABEL_SELECTOR": "pool in a",
    "NODEGAUGE_API_RATE": "nan",
    "NODEGAUGE_API_BURST": "2.5",
    "NODEGAUGE_WORKERS": "0",
    "NODEGAUGE_SWEEP_INTERVAL": "5",
    "NODEGAUGE_RELIST_INTERVAL": "1s",
    "NODEGAUGE_MAX_GATED_NODES": "a few",
    "NODEGAUGE_LOG_LEVEL": "loud",
    "NODEGAUGE_LOG_FORMAT": "xml",
}


def test_one_error_lists_every_bad_value() -> None:
    """Nobody wants to start it fifteen times."""
    with pytest.raises(SettingsError) as caught:
        parse(BAD)
    lines = str(caught.value).splitlines()[1:]
    assert len(lines) == len(BAD)
    for name, value in BAD.items():
        (line,) = [line for line in lines if re.match(rf"\s*{name}\b", line)]
        assert value.strip() in line
        assert any(word in line for word in ("set it to", "must be", "write")), f"no way out in: {line}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NODEGAUGE_API_RATE", "inf"),
        ("NODEGAUGE_API_RATE", "0"),
        ("NODEGAUGE_API_RATE", "-1"),
        ("NODEGAUGE_WORKERS", "65"),
        ("NODEGAUGE_WORKERS", "eight"),
        ("NODEGAUGE_HTTP_PORT", "-1"),
        ("NODEGAUGE_MAX_GATED_NODES", "101%"),
        ("NODEGAUGE_MAX_GATED_NODES", "-1"),
        ("NODEGAUGE_SWEEP_INTERVAL", "0s"),
        ("NODEGAUGE_SWEEP_INTERVAL", "1d"),
        ("NODEGAUGE_SWEEP_INTERVAL", "99999h"),
        ("NODEGAUGE_SWEEP_INTERVAL", "-5s"),
    ],
)
def test_values_out_of_range_are_refused(name: str, value: str) -> None:
    """With the name, the value, and the range."""
    with pytest.raises(SettingsError, match=name):
        parse(NEEDED | {name: value})


def test_bad_settings_exit_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is contacted, in words, without a traceback."""
    monkeypatch.setattr("os.environ", dict(BAD))
    assert main() == 2
    assert "NODEGAUGE_WORKERS is 0: must be a number from 1 to 64" in capsys.readouterr().err


def test_no_cluster_ends_the_process_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    """And says what was tried and what to do."""
    kubeconfig = f"{tmp_path}/no such file"
    monkeypatch.setattr("os.environ", NEEDED | {"KUBECONFIG": kubeconfig, "NODEGAUGE_LOG_LEVEL": "error"})
    monkeypatch.setattr("nodegauge_operator.logs.configure", lambda **_: None)
    assert main() == 1
    output = capsys.readouterr().err
    assert "no access to a cluster" in output
    assert "Set KUBECONFIG" in output
