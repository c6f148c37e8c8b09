"""What stands in for container images: source folders and this interpreter, or some host programs."""

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from nodegauge_probes.nccl.protocol import CHILD_VARIABLE
from testbed.kubelet.errors import ContainerWaits, StartFailed

PROBES = "nodegauge_probes"
OTHER_IMAGES = "NODEGAUGE_TESTBED_OTHER_IMAGES"
"""Variable of the kubelets: `PATH_IN_REGISTRY=CHECKOUT` for images of another checkout."""
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, kw_only=True)
class Image:
    """`entrypoint`: where the pod gives no `command`.  `programs`: what a name in argv[0] stands for."""

    entrypoint: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    programs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def stands_in(self) -> bool:
        """Whether its first process computes on no GPU: simulated NCCL and CUDA say what they do."""
        return self.entrypoint[-1:] == (PROBES,)

    def argv(self, command: list[str], args: list[str]) -> list[str]:
        message = [*(command or self.entrypoint), *args]
        if not message:
            raise StartFailed("no command specified")
        program = self.programs.get(message[0]) or self.programs.get(message[0].rpartition("/")[2])
        if program is None:
            raise StartFailed(f'exec: "{message[0]}": executable file not found in $PATH')
        return [*program, *message[1:]]


def python_image(*sources: Path, module: str = "") -> Image:
    """This interpreter, with `sources` on its path, and the library path that some builds of Python need."""
    env = {"PYTHONPATH": os.pathsep.join(map(str, sources))} if sources else {}
    libraries = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    python = (sys.executable,)
    return Image(
        entrypoint=("python", "-m", module) if module else ("python",),
        env=env | libraries,
        programs={"python": python, "python3": python, "nodegauge": (*python, "-m", "nodegauge_cli")},
    )


def simulated_nccl_environment(checkout: Path) -> dict[str, str]:
    launcher = checkout / "tests/testbed/simulated_nccl/nccl"
    return {CHILD_VARIABLE: str(launcher), "NODEGAUGE_SIMULATED_NCCL_PYTHON": sys.executable}


def host_image(*names: str) -> Image:
    result = {name: shutil.which(name, path=SYSTEM_PATH) for name in names}
    return Image(entrypoint=names[:1], programs={name: (path,) for name, path in result.items() if path})


def default_images(checkout: Path | None = None) -> dict[str, Image]:
    """Operator, probe and NCCL probe of a checkout; under a path in the registry those of `OTHER_IMAGES`."""
    root = checkout or Path(__file__).resolve().parents[3]
    sources = (root / "operator" / "src", root / "probes" / "src")
    probes = python_image(*sources, module=PROBES)
    nccl = replace(probes, env={**probes.env, **simulated_nccl_environment(root)})
    prefix, _, other = os.environ.get(OTHER_IMAGES, "").partition("=") if checkout is None else ("", "", "")
    others = default_images(Path(other)) if other else {}
    return {
        **{f"{prefix}/{name}": image for name, image in others.items()},
        "nodegauge/operator": python_image(*sources, module="nodegauge_operator"),
        "nodegauge/probes": probes,
        "nodegauge/probe": probes,
        "nodegauge/nccl": nccl,
        "python": python_image(),
        "busybox": host_image("sh", "sleep", "echo", "cat", "true", "false", "env"),
    }


def find(images: Mapping[str, Image], reference: str, *, pull_policy: str) -> Image:
    """The image of this name, whatever its registry, tag or digest."""
    *parts, last = reference.partition("@")[0].split("/")
    parts.append(last.partition(":")[0])
    for start in range(len(parts)):
        if (image := images.get("/".join(parts[start:]))) is not None:
            return image
    if pull_policy == "Never":
        text = f'Container image "{reference}" is not present with pull policy of Never'
        raise ContainerWaits(text, reason="ErrImageNeverPull")
    text = f'failed to pull image "{reference}": this simulated node has {", ".join(sorted(images))}'
    raise ContainerWaits(text, reason="ErrImagePull")
