"""The plugin as krew installs it: a manifest with its fields, and an archive that runs on a bare Python."""

import hashlib
import os
import platform
import subprocess
import sys
import tarfile
from pathlib import Path

import yaml

from support.image_tools import extract
from testbed.hostarchive import ROOT
from testbed.kubelet.node import ARCHITECTURES

REQUIRED = {"selector", "uri", "sha256", "bin"}


def test_krew_s_archive_runs_as_plugin_and_completes(tmp_path: Path) -> None:
    target = f"linux-{ARCHITECTURES[platform.machine()]}"
    build = [sys.executable, str(ROOT / "deploy/krew"), str(tmp_path), "--url", "https://example.com/"]
    subprocess.run([*build, "--target", target], check=True, timeout=300)
    manifest = yaml.safe_load((tmp_path / "nodegauge.yaml").read_text(encoding="utf-8"))
    spec, (entry,) = manifest["spec"], manifest["spec"]["platforms"]
    assert (manifest["kind"], manifest["metadata"]) == ("Plugin", {"name": "nodegauge"})
    assert {"version", "shortDescription", "description", "caveats", "platforms"} == spec.keys()
    assert (entry.keys(), spec["version"][0]) == (REQUIRED, "v")
    archive = tmp_path / Path(entry["uri"]).name
    assert entry["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    with tarfile.open(archive) as tar:
        extract(tar, tmp_path / "store", by="data_filter")
    for name in ("kubectl-nodegauge", "kubectl_complete-nodegauge"):
        (tmp_path / name).symlink_to(tmp_path / "store" / entry["bin"])

    def run(name: str, *arguments: str) -> str:
        bare = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        command = [sys.executable, "-I", str(tmp_path / name), *arguments]
        return subprocess.run(
            command, env=bare, capture_output=True, text=True, timeout=60, check=True
        ).stdout

    assert spec["version"][1:] in run("kubectl-nodegauge", "--version")
    assert "Usage: kubectl nodegauge run " in run("kubectl-nodegauge", "run", "--help")
    assert run("kubectl_complete-nodegauge", "overr").splitlines()[0].startswith("override\t")
