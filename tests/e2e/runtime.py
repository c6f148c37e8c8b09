"""What NVIDIA's container runtime does, for the simulated driver: a program around runc.

    python -I -S runtime.py SETTINGS RUNC-ARGUMENT...

On `create` it reads the bundle's config.json.  Where the process's environment has NVIDIA_VISIBLE_DEVICES
other than void, none and empty, it adds the driver's library, the machine's state and its /sys and /proc as
read-only bind mounts, and the variables that name them; then it becomes runc.  So no pod needs hostPath.
While no driver is loaded it refuses such a container, as nvidia-container-cli does.

Where the environment does not name that variable, a device plugin would set it for a container that holds
GPUs.  There is none here, and a bundle does not say what its container holds: the API server is asked, as the
node's own user.  SETTINGS is a JSON file: `runc`, `mounts` (inside to outside), `env`, `uuids` of the GPUs,
`driver` (a file that is there while one is loaded), `api` (the file with the API server's `server`, `ca` and
`token`).  Standard library only.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

VISIBLE = "NVIDIA_VISIBLE_DEVICES="
NO_DEVICES = {"", "void", "none"}
RESOURCE = "nvidia.com/gpu"
CRI = "io.kubernetes.cri."
"""What containerd writes into a bundle of whose container it is."""


def main(settings_file: str, arguments: list[str]) -> None:
    """Change the bundle if need be, then become runc."""
    settings: dict[str, Any] = json.loads(Path(settings_file).read_text())
    if "create" in arguments:
        config = Path(_bundle(arguments)) / "config.json"
        spec = handed_out(json.loads(config.read_text()), settings)
        if wanted(spec):
            if not Path(settings["driver"]).exists():
                sys.exit("nvidia-container-cli: initialization error: nvml error: driver not loaded")
            config.write_text(json.dumps(added(spec, settings)))
    os.execv(settings["runc"], [settings["runc"], *arguments])


def wanted(spec: dict[str, Any]) -> bool:
    """Whether the container asks for devices."""
    return any(v.startswith(VISIBLE) and v.removeprefix(VISIBLE) not in NO_DEVICES for v in _env(spec))


def handed_out(spec: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """The spec with the GPUs that its container holds, the first so many: no two hold some at a time here."""
    marks = spec.get("annotations", {})
    container = marks.get(f"{CRI}container-name")  # a sandbox has none
    if container is None or any(variable.startswith(VISIBLE) for variable in _env(spec)):
        return spec
    pod = asked(json.loads(Path(settings["api"]).read_text()), marks)
    reported = next(one for one in pod["spec"]["containers"] if one["name"] == container)
    taken = int(reported.get("resources", {}).get("limits", {}).get(RESOURCE, 0))
    if not taken:
        return spec
    env = [*_env(spec), VISIBLE + ",".join(settings["uuids"][:taken])]
    return {**spec, "process": {**spec["process"], "env": env}}


def asked(api: dict[str, str], marks: dict[str, str]) -> dict[str, Any]:
    """The pod of a bundle, as the API server has it."""
    import ssl  # 0.1 s, which no other container has to wait for
    import urllib.request

    namespace, name = (marks[f"{CRI}sandbox-{what}"] for what in ("namespace", "name"))
    request = urllib.request.Request(
        f"{api['server']}/api/v1/namespaces/{namespace}/pods/{name}",
        headers={"Authorization": f"Bearer {api['token']}"},
    )
    context = ssl.create_default_context(cafile=api["ca"])
    with urllib.request.urlopen(request, context=context, timeout=10) as answer:
        result: dict[str, Any] = json.load(answer)
    return result


def added(spec: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """The spec with the driver in it; what the container's own environment says wins."""
    mounts = [
        {
            "destination": inside,
            "source": outside,
            "type": "bind",
            "options": ["rbind", "ro", "nosuid", "nodev"],
        }
        for inside, outside in settings["mounts"].items()
    ]
    own = _env(spec)
    output = {variable.partition("=")[0] for variable in own}
    env = own + [f"{name}={value}" for name, value in settings["env"].items() if name not in output]
    return {**spec, "mounts": spec.get("mounts", []) + mounts, "process": {**spec["process"], "env": env}}


def _env(spec: dict[str, Any]) -> list[str]:
    result: list[str] = spec.get("process", {}).get("env", [])
    return result


def _bundle(arguments: list[str]) -> str:
    for location, word in enumerate(arguments):
        if word in ("--bundle", "-b"):
            return arguments[location + 1]
        if word.startswith("--bundle="):
            return word.partition("=")[2]
    return "."


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
