"""An earlier commit is installed on real parts, upgraded to this checkout, rolled back, and upgraded again,
while machines are broken.  Each step prints what is so; the first that is not ends the run.
"""

import argparse
import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from fleet.real import until
from support.cluster_under_test import OURS, ROOT
from support.slice import GPU_NODES, NAMESPACE, RELEASE, VALUES, Slice
from support.taint_history import TaintHistory
from testbed.cluster import Testbed
from testbed.errors import TestbedError
from testbed.kubelet.images import OTHER_IMAGES
from testbed.rest import Object
from testbed.wait import Progress, wait_for

REGISTRY, BEFORE = "registry.example.com", "before"
BROKEN = {"gpu-titan": "p2p-refused", "gpu-phb": "gpu-lost"}
NEXT, NEXT_FAULT = "gpu-dgx1", "gpu-lost"
ANY_RATE = ("operator.maxGatedNodesPerHour=100%", "policy.spec.budget.gatedNodesPerHour=100%")
"""Some earlier versions know no rate of new taints; under the default a fleet of four gets one an hour."""


class Story:
    def __init__(self, slice_: Slice, *, commit: str) -> None:
        self._slice, self._commit, self.say = slice_, commit, Progress().say

    def tell(self) -> None:
        slice_ = self._slice
        slice_.install()
        wait_for(lambda: all(map(slice_.last_run, slice_.nodes)), what="a first run on every node")
        self.say(f"{self._commit} is installed, {len(slice_.nodes)} nodes are read")
        for node, fault in BROKEN.items():
            self._break(node, fault)
        kept = self._kept()
        self._move("upgrade to this checkout", self._upgrade, kept, version="")
        wait_for(lambda: slice_.watch_pods().keys() == set(slice_.nodes), what="a container on every node")
        self.say("a container stays on every node")
        self._heal("gpu-titan")
        self._break(NEXT, NEXT_FAULT)
        status = slice_.report(NEXT)["status"]
        self._check(bool(status["transitions"]), "the report holds its history")
        self._move("rollback", self._rollback, self._kept(), version=BEFORE)
        self._heal(NEXT)
        self._move("upgrade again", self._upgrade, self._kept(), version="")
        self._heal("gpu-phb")
        slice_.uninstall()
        left = [node for node in slice_.nodes if slice_.ours(node) or slice_.taints(node)]
        self._check(not left, "uninstalled: no label and no taint is left")

    def _move(self, what: str, act: Callable[[], None], kept: Object, *, version: str) -> None:
        """Another version takes over; labels, taints, conditions and reports stay, and every node is read."""
        slice_ = self._slice
        before = slice_.operator_pod()["metadata"]["uid"]
        tainted = {node for node in slice_.nodes if slice_.taints(node)}
        with TaintHistory(slice_.api, prefix="gpu-") as history:
            act()
            pod = slice_.operator_pod()
            image = pod["spec"]["containers"][0]["image"]
            self._check(pod["metadata"]["uid"] != before, f"{what}: a new operator runs, {image}")
            self._check((f"/{BEFORE}/" in image) is (version == BEFORE), "its image is of that version")
            numbers = {node: slice_.last_run(node)["number"] for node in slice_.nodes}
            for node in slice_.nodes:
                run = slice_.measure(node)
                self._check(
                    run["outcome"] == "read" and run["number"] > numbers[node],
                    f"{node}: run {run['number']} is read",
                )
        now = self._kept()
        for node in slice_.nodes:
            differing = [key for key in kept[node] if kept[node][key] != now[node][key]]
            if differing:
                key = differing[0]
                raise TestbedError(f"{what}: {node}: {key}: {kept[node][key]} became {now[node][key]}")
        self.say(f"{what}: labels, taints, conditions and reports of {len(kept)} nodes are as before")
        changes = set(list(history.moments())[len(slice_.nodes) :])
        self._check(changes <= {frozenset(tainted)}, f"{what}: no taint came or went meanwhile")

    def _kept(self) -> Object:
        """By node, what another version must not change: also when a taint was set, and the report's UID."""
        return {node: self._of(node) for node in self._slice.nodes}

    def _of(self, node: str) -> Object:
        slice_ = self._slice
        body, report = slice_.node(node), slice_.report(node)
        condition = slice_.condition(node)
        return {
            "labels": slice_.ours(node),
            "taints": [t for t in body["spec"].get("taints", []) if t["key"].startswith(OURS)],
            "condition": (condition["status"], condition["reason"]),
            "report": report["metadata"]["uid"],
            "verdict": report["status"]["verdict"],
            "interconnect": report["status"].get("interconnect", {}).get("class"),
            "gates": [(gate["code"], gate["state"]) for gate in report["status"].get("gates", [])],
        }

    def _upgrade(self) -> None:
        self._slice.chart = ROOT / "charts" / "nodegauge"
        self._slice.upgrade(f"image.registry={REGISTRY}", *ANY_RATE)

    def _rollback(self) -> None:
        where = ("--namespace", NAMESPACE, "--wait", "--timeout", "120s")
        self._slice.testbed.helm("rollback", RELEASE, "1", *where)

    def _heal(self, node: str) -> None:
        self._slice.healed(node)
        self._check(not self._slice.taints(node), f"{node} is repaired: its taint is gone")

    def _break(self, node: str, fault: str) -> None:
        """A container may report meanwhile what it read before: as many readings as it takes."""
        self._slice.testbed.hardware(node).fault(fault)

        until(
            lambda: self._slice.measure(node) and self._slice.taints(node),
            what=f"a taint of {node} for {fault}",
        )
        self.say(f"{node} breaks ({fault}): it is tainted {', '.join(self._slice.taints(node))}")

    def _check(self, holds: bool, what: str) -> None:
        if not holds:
            raise TestbedError(f"not so: {what}")
        self.say(what)


@contextlib.contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    git = ["git", "-C", str(ROOT)]
    verify = [*git, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"]
    known = subprocess.run(verify, stdout=subprocess.DEVNULL, check=False)
    if known.returncode:
        raise TestbedError(
            f"--from {commit}: git has no such commit or tag here; in a shallow clone, git fetch --unshallow"
        )
    with tempfile.TemporaryDirectory(prefix="nodegauge-before-") as folder:
        path = Path(folder) / "checkout"
        try:
            subprocess.run([*git, "worktree", "add", "--quiet", "--detach", str(path), commit], check=True)
            yield path
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(path)], check=False)


def earlier_values(chart: Path) -> Object:
    """The values of the slice's tests that its version knows, with its images.  Readings come as each version
    does it by default: by pods, or by containers that stay."""
    values = json.loads(json.dumps(VALUES))
    values["image"]["registry"] = f"{REGISTRY}/{BEFORE}"
    del values["policy"]["spec"]["probes"]["health"]["mode"]
    if "maxGatedNodesPerHour" not in (chart / "values.yaml").read_text(encoding="utf-8"):
        del values["operator"]["maxGatedNodesPerHour"]
        del values["policy"]["spec"]["budget"]["gatedNodesPerHour"]
    values["operator"]["maxGatedNodes"] = values["policy"]["spec"]["budget"]["gatedNodes"] = "100%"
    result: Object = values
    return result


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from", dest="commit", required=True, metavar="COMMIT", help="a commit or a tag")


def run_scenario(chosen: argparse.Namespace) -> int:
    with checked_out(chosen.commit) as before, tempfile.TemporaryDirectory(prefix="nodegauge-up-") as folder:
        os.environ[OTHER_IMAGES] = f"{BEFORE}={before}"
        with Testbed(Path(folder), nodes={"system-1": None, **GPU_NODES}) as testbed:
            slice_ = Slice(testbed)
            slice_.chart = before / "charts" / "nodegauge"
            slice_.values.write_text(json.dumps(earlier_values(slice_.chart)))
            Story(slice_, commit=chosen.commit).tell()
    print(f"upgrade from {chosen.commit}, rollback and upgrade again: all is as it should be", flush=True)
    return 0
