"""What NVIDIA's container runtime does, for the simulated driver: a program around runc.

    python -I -S runtime.py SETTINGS RUNC-ARGUMENT...

On `create` it reads the bundle's config.json.  Where the process's environment has NVIDIA_VISIBLE_DEVICES
other than void, none and empty, it adds the driver's library, the machine's state and its /sys and /proc as
read-only bind mounts, and the variables that name them; then it becomes runc.  So no pod needs hostPath.
While no driver is loaded it refuses such a container, as nvidia-container-cli does.

Where the environment does not name that variable, a device plugin would set it for a container that holds
GPUs: here every container of the class has all of them, and the steps look at what pods ask for.  SETTINGS is
a JSON file: `runc`, `mounts` (inside to outside), `env`, `driver` (a file that is there while one is loaded).
Standard library only.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

VISIBLE = "NVIDIA_VISIBLE_DEVICES="
NO_DEVICES = {"", "void", "none"}
SANDBOX = "io.kubernetes.cri.container-type"
"""What containerd writes into a bundle: a sandbox gets no devices."""


def main(settings_file: str, arguments: list[str]) -> None:
    """Change the bundle if need be, then become runc."""
    settings: dict[str, Any] = json.loads(Path(settings_file).read_text())
    if "create" in arguments:
        config = Path(_bundle(arguments)) / "config.json"
        spec = json.loads(config.read_text())
        if wanted(spec):
            if not Path(settings["driver"]).exists():
                sys.exit("nvidia-container-cli: initialization error: nvml error: driver not loaded")
            config.write_text(json.dumps(added(spec, settings)))
    os.execv(settings["runc"], [settings["runc"], *arguments])


def wanted(spec: dict[str, Any]) -> bool:
    asked = [value.removeprefix(VISIBLE) for value in _env(spec) if value.startswith(VISIBLE)]
    if not asked:
        return bool(spec.get("annotations", {}).get(SANDBOX) == "container")
    return not NO_DEVICES.issuperset(asked)


def added(spec: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """The spec with the driver in it; what the container's own environment says wins."""
    bind = {"type": "bind", "options": ["rbind", "ro", "nosuid", "nodev"]}
    pairs = settings["mounts"].items()
    mounts = [{"destination": inside, "source": outside, **bind} for inside, outside in pairs]
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
