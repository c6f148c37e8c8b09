"""What nodegauge puts on nodes and into reports, as anybody sees it in the API."""

from testbed.rest import Object

PREFIX = "nodegauge.dev/"


def labels_of(labels: dict[str, str]) -> dict[str, str]:
    """Those that nodegauge sets, without the time."""
    ours = {key: value for key, value in labels.items() if key.startswith(PREFIX) or key == "interconnect"}
    ours.pop(f"{PREFIX}validated-at", None)
    return ours


def taints_of(node: Object) -> list[str]:
    """As kubectl writes them."""
    return [shown_taint(t) for t in node["spec"].get("taints") or () if t["key"].startswith(PREFIX)]


def shown_taint(taint: Object) -> str:
    return f"{taint['key']}={taint.get('value', '')}:{taint['effect']}"


def carries(node: Object, desired: Object) -> bool:
    """Whether the node has the labels and taints that its report wants."""
    taints = sorted(map(shown_taint, desired.get("taints") or ()))
    seen = labels_of(node["metadata"].get("labels", {})), sorted(taints_of(node))
    return seen == (labels_of(desired.get("labels") or {}), taints)


def condition_of(node: Object) -> Object:
    """Without its times; empty while there is none."""
    ours = (c for c in node["status"].get("conditions", []) if c["type"] == "GPUValidated")
    return {k: v for k, v in next(ours, {}).items() if not k.startswith("last")}


def probe_of(status: Object, name: str = "health") -> Object:
    """What the status of a report says of a probe; empty before its first run."""
    return next((probe for probe in status.get("probes") or () if probe["name"] == name), {})


def last_run_of(report: Object) -> Object:
    """How the last health run ended; empty before the first."""
    return probe_of(report.get("status", {})).get("lastRun") or {}
