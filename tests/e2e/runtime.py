"""What NVIDIA's container runtime does before `runc create`, for the simulated driver: `runtime.py SETTINGS
RUNC-ARGUMENT...` adds library, machine and variables to config.json where NVIDIA_VISIBLE_DEVICES names
devices or is missing (a device plugin would set it), and refuses while the `driver` file is away.  Standard
library only."""

import json
import sys
from pathlib import Path
from typing import Any

VISIBLE = "NVIDIA_VISIBLE_DEVICES="
NO_DEVICES = {"", "void", "none"}
SANDBOX = "io.kubernetes.cri.container-type"
"""What containerd writes into a bundle: a sandbox gets no devices."""


def main(settings_file: str, arguments: list[str]) -> None:
    settings: dict[str, Any] = json.loads(Path(settings_file).read_text())
    config = Path(_bundle(arguments)) / "config.json"
    spec = json.loads(config.read_text())
    if wanted(spec):
        if not Path(settings["driver"]).exists():
            sys.exit("nvidia-container-cli: initialization error: nvml error: driver not loaded")
        config.write_text(json.dumps(added(spec, settings)))


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
