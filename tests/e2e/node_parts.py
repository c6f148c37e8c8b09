"""What the node is made of: a container runtime of Debian's packages, unpacked into the cache, and images as
OCI archives: the project's as `make images` makes them, and four of the tests'. The NCCL image is the probe's
with simulated NCCL. No registry is asked."""

import json
import os
import platform
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from images.archive import Blob, Layer, layer, write

from nodegauge_probes.nccl.protocol import CHILD_VARIABLE
from testbed import debian
from testbed.hardware.nccl_file import CUDA, NCCL
from testbed.interruption import alone
from testbed.kubelet.node import ARCHITECTURES
from testbed.processes import Failed, output_of
from testbed.simulated_nccl import machine

CHECKOUT = Path(__file__).resolve().parents[2]
REGISTRY = "localhost"
PAUSE = f"{REGISTRY}/nodegauge/pause:e2e"
TALKER = f"{REGISTRY}/nodegauge/talker:e2e"
"""A probe that writes what nobody can read, where a reading belongs."""
MUTE = f"{REGISTRY}/nodegauge/mute:e2e"
"""A probe that writes nothing at all."""
NCCL_REPOSITORY, NCCL_TAG = "nodegauge/nccl", "e2e"
SIMULATED_NCCL = "opt/simulated_nccl"
ENGINE = f"/{SIMULATED_NCCL}/__main__.py"
"""What measures in the NCCL probe's image (tests/testbed/simulated_nccl)."""

TALKS = """\
#!/usr/bin/python3
import os

from nodegauge_contract.reading import Part
from nodegauge_probes.api_client import ReadingClient
from nodegauge_probes.identity import server_of

client = ReadingClient(server_of(os.environ))
me = client.identity()
words = {"pod": me.pod, "pod_uid": me.pod_uid, "node_uid": me.node_uid, "reading": "not a document"}
client.write("health", Part(sequence=1, at="2026-01-01T00:00:00Z", **words))
"""
SAYS_NOTHING = """\
#!/usr/bin/python3
raise SystemExit(3)
"""
CONFIG = """\
Dir::State::lists "{folder}/lists";
Dir::Cache "{folder}/cache";
APT::Sandbox::User "root";
"""
PACKAGES = ("containerd", "runc", "containernetworking-plugins")


class Runtime:
    """`containerd`: the folder of another one than Debian's, with its shim."""

    def __init__(self, root: Path, *, containerd: Path | None = None) -> None:
        self.root = root
        programs = containerd or root / "usr/bin"
        self.containerd, self.ctr = programs / "containerd", programs / "ctr"
        self.runc, self.plugins = root / "usr/sbin/runc", root / "usr/lib/cni"
        self.path = f"{programs}:{root}/usr/bin:{root}/usr/sbin:/usr/sbin:/usr/bin:/sbin:/bin"


def fetch_runtime(cache: Path, *, progress: Callable[[str], None]) -> Runtime:
    runtime = Runtime(cache / "e2e" / "runtime")
    if not runtime.root.is_dir():
        progress(f"downloading Debian's {', '.join(PACKAGES)} (35 MB)")
    debian.unpack(runtime.root, *PACKAGES)
    for program in (runtime.containerd, runtime.ctr, runtime.runc, runtime.plugins / "bridge"):
        if not program.exists():
            raise Failed(f"{program} is missing: remove {runtime.root} and try again")
    return runtime


def fetch_lists(cache: Path, *, progress: Callable[[str], None]) -> None:
    """apt's lists, fetched into the cache where the machine's, which stay as they are, are too old."""
    folder = cache / "e2e" / "apt"
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    config = folder / "apt.conf"
    config.write_text(CONFIG.format(folder=folder), encoding="utf-8")
    progress("fetching apt's lists into the cache: the machine's own are missing or out of date")
    os.environ["APT_CONFIG"] = str(config)
    debian.run(["apt-get", "update", "-q"])


def make_images(cache: Path, *, progress: Callable[[str], None]) -> list[Path]:
    folder = cache / "e2e" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    progress("images: operator and probe, as `make images` makes them")
    command = [sys.executable, "-m", "images", "archives", "--out", str(folder), "--registry", REGISTRY]
    with alone(folder / "lock"):  # tests/images makes and reads the same two
        output = output_of(command, cwd=CHECKOUT)
        made = [Path(line) for line in output.splitlines() if line.endswith(".tar")]
        probe = next(path for path in made if "probe" in path.name)
        talker = _another_python(folder / "talker.tar", probe, reference=TALKER, program=TALKS)
        mute = _another_python(folder / "mute.tar", probe, reference=MUTE, program=SAYS_NOTHING)
        return [*made, _pause(folder), talker, mute, _nccl(folder, probe)]


def _another_python(archive: Path, probe: Path, *, reference: str, program: str) -> Path:
    def fill(root: Path) -> None:
        file = root / "opt/nodegauge/bin/python"
        file.parent.mkdir(parents=True)
        file.write_text(program)
        file.chmod(0o755)

    return _on_top(probe, archive, reference=reference, fill=fill)


def _nccl(folder: Path, probe: Path) -> Path:
    source = CHECKOUT / "tests/testbed/simulated_nccl"

    def fill(root: Path) -> None:
        shutil.copytree(source, root / SIMULATED_NCCL, ignore=shutil.ignore_patterns("__pycache__"))
        nothing = machine.Machine(name="the image", seed="", nccl=NCCL, cuda=CUDA, gpus=())
        (root / SIMULATED_NCCL / machine.DEFAULT_FILE.name).write_bytes(machine.encode(nothing))

    reference, own = f"{REGISTRY}/{NCCL_REPOSITORY}:{NCCL_TAG}", [f"{CHILD_VARIABLE}={ENGINE}"]
    sources = [*source.glob("*.py")]
    return _on_top(
        probe, folder / "nccl.tar", reference=reference, fill=fill, environment=own, sources=sources
    )


def _on_top(
    probe: Path,
    archive: Path,
    *,
    reference: str,
    fill: Callable[[Path], None],
    environment: Iterable[str] = (),
    sources: Iterable[Path] = (),
) -> Path:
    """The probe's image with one more layer, which wins, and more in its containers' environment."""
    if not _newer(archive, than=[probe, Path(__file__), *sources]):
        layers, config = _read(probe)
        config["Env"] = [*config.get("Env", []), *environment]
        _write(archive, reference=reference, below=layers, fill=fill, config=config)
    return archive


def _write(
    archive: Path,
    *,
    reference: str,
    below: Iterable[Layer],
    fill: Callable[[Path], None],
    config: dict[str, Any],
) -> None:
    with tempfile.TemporaryDirectory(dir=archive.parent) as root:
        fill(Path(root))
        layers = [*below, layer(Path(root), created_by="tests/e2e")]
    architecture = ARCHITECTURES.get(platform.machine(), platform.machine())
    write(archive, reference=reference, layers=layers, architecture=architecture, config=config)


def _read(archive: Path) -> tuple[list[Layer], dict[str, Any]]:
    with tarfile.open(archive) as tar:
        files = {member.name: file.read() for member in tar if (file := tar.extractfile(member))}

    def blob(descriptor: dict[str, Any]) -> bytes:
        return files["blobs/" + descriptor["digest"].replace(":", "/")]

    manifest = json.loads(blob(json.loads(files["index.json"])["manifests"][0]))
    config = json.loads(blob(manifest["config"]))
    layers = []
    for one, diff_id in zip(manifest["layers"], config["rootfs"]["diff_ids"], strict=True):
        data = Blob(data=blob(one), media_type=one["mediaType"])
        layers.append(Layer(blob=data, diff_id=diff_id, unpacked=0, created_by="the probe's image"))
    return layers, config["config"]


def _pause(folder: Path) -> Path:
    archive, source = folder / "pause.tar", Path(__file__).with_name("pause.c")

    def fill(root: Path) -> None:
        output_of(["cc", "-static", "-Os", "-s", "-o", f"{root}/pause", str(source)])

    if not _newer(archive, than=[source]):
        _write(archive, reference=PAUSE, below=(), fill=fill, config={"Entrypoint": ["/pause"]})
    return archive


def _newer(archive: Path, *, than: list[Path]) -> bool:
    return archive.exists() and all(archive.stat().st_mtime > file.stat().st_mtime for file in than)
