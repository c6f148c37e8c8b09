"""Which labels a job asks for, and a manifest that does."""

from __future__ import annotations

from math import ceil, floor
from typing import NamedTuple

import yaml

from nodegauge_cli.zero.classes import PRODUCT_LABEL, Class
from nodegauge_contract import Collective
from nodegauge_judge.zero.communication import Scheme
from nodegauge_judge.zero.estimators import GIB
from nodegauge_judge.zero.ways import Option, Way
from nodegauge_operator import names

MARGIN = 0.9
"""Share of a measured rate that a job asks for, so that noise excludes no like node.  Chosen by this
project."""
H2D = names.PREFIX + "h2d-gbps"
HOST_MEMORY = names.PREFIX + "host-memory-per-gpu"
NVME_READ = names.PREFIX + "nvme-read-gbps"
BUSBW = names.PREFIX + "busbw-allgather"


class Wish(NamedTuple):
    """One requirement of a node: `key`, `In` or `Gt`, the value."""

    key: str
    operator: str
    value: str

    @property
    def text(self) -> str:
        """In one line."""
        return f"{self.key}={self.value}" if self.operator == "In" else f"{self.key} > {self.value}"


def wishes(chosen: Class, option: Option) -> list[Wish]:
    """The labels that such nodes have, and no others that are too small or too slow."""
    facts = chosen.facts
    matches = [Wish(PRODUCT_LABEL, "In", chosen.product)] if chosen.product else []
    if chosen.interconnect and facts.gpus > 1:
        matches.append(Wish(names.LABEL_INTERCONNECT, "In", chosen.interconnect))
    curve = facts.bandwidths.curve(Collective.ALL_GATHER) if facts.bandwidths else None
    if option.way is Way.NODE and option.scheme is not Scheme.DDP and curve and facts.gpus > 1:
        matches.append(_over(BUSBW, curve.gbps))
    if option.way in (Way.CPU, Way.NVME) and facts.h2d_all_gbps:
        matches.append(_over(H2D, facts.h2d_all_gbps))
    if option.way is Way.CPU:
        matches.append(Wish(HOST_MEMORY, "Gt", str(ceil(option.host_bytes / option.gpus / GIB) - 1)))
    if option.way is Way.NVME and facts.nvme_read_gbps:
        matches.append(_over(NVME_READ, facts.nvme_read_gbps))
    return matches


def _over(key: str, measured: float) -> Wish:
    return Wish(key, "Gt", str(floor(measured * MARGIN)))


def manifest(chosen: Class, option: Option) -> str:
    """A Job of one pod on each node, as YAML; image and command are the user's."""
    expressions = [
        {"key": w.key, "operator": w.operator, "values": [w.value]} for w in wishes(chosen, option)
    ]
    terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    container = {
        "name": "train",
        "image": "YOUR-IMAGE",
        "resources": {"limits": {names.GPU_RESOURCE: option.gpus}},
    }
    pod = {
        "restartPolicy": "Never",
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
        "containers": [container],
    }
    spec = {
        "completions": option.nodes,
        "parallelism": option.nodes,
        "completionMode": "Indexed",
        "template": {"spec": pod},
    }
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": spec}
    return yaml.safe_dump(job, sort_keys=False)
