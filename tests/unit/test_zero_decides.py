"""`nodegauge zero` decides: memory, offload, ways on a class of nodes, and what a person reads."""

import json
import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

import nodegauge_operator.api.report as api
from nodegauge_contract import Collective
from nodegauge_judge import Verdict
from nodegauge_judge.zero import estimators, offload
from nodegauge_judge.zero.communication import Bandwidths, Curve
from nodegauge_judge.zero.decide import best, decide, largest
from nodegauge_judge.zero.estimators import GIB, Checkpointing, Offload, Optimizer, Precision
from nodegauge_judge.zero.shape import by_rule, parse_params, shape_of
from nodegauge_judge.zero.ways import Limit, NodeClass, Option, Training, Way
from nodegauge_operator import names
from nodegauge_operator.api.offload_status import OffloadStatus
from nodegauge_operator.kube.errors import Forbidden
from support.judge_command import flat
from support.objects import taint
from support.zero import Cluster, health, report, shown, zero

# As DeepSpeed's documentation states them (docs/code-docs/source/memory.rst), evaluated.
STATED = {
    ("2", "gpu", Offload.OPTIMIZER): "2 * params",
    ("2", "gpu", Offload.NOTHING): "4 * params + int(16 * params / total_gpus)",
    ("2", "host", Offload.OPTIMIZER): "params * max(4 * total_gpus, 16) * factor",
    ("2", "host", Offload.NOTHING): "params * 4 * n_gpus * factor",
    ("3", "gpu", Offload.NOTHING): "4 * layer + int(18 * params / total_gpus)",
    ("3", "gpu", Offload.OPTIMIZER): "4 * layer + int(2 * params / total_gpus)",
    ("3", "gpu", Offload.ALL): "4 * layer",
    ("3", "host", Offload.NOTHING): "(layer if init else params) * 4 * n_gpus * factor",
    ("3", "host", Offload.OPTIMIZER): "params * max(0 if init else 4 * n_gpus, 16 * gpus_factor) * factor",
    ("3", "host", Offload.ALL): "params * max(0 if init else 4 * n_gpus, 18 * gpus_factor) * factor",
}


def test_memory_is_deepspeeds_to_the_byte() -> None:
    draw = random.Random(33)
    for _ in range(200):
        params, layer = draw.randrange(10**6, 10**13), draw.randrange(10**4, 10**10)
        gpus, nodes, factor = draw.randrange(1, 17), draw.randrange(1, 300), draw.choice((1, 1.5, 1.1))
        scope: dict[str, Any] = {"params": params, "layer": layer, "n_gpus": gpus, "total_gpus": gpus * nodes}
        scope |= {"factor": factor, "gpus_factor": gpus / (gpus * nodes), "int": int, "max": max}
        for moved, init in product(Offload, (True, False)):
            scope["init"] = init
            known: dict[str, Any] = {"gpus": gpus, "nodes": nodes, "buffer": factor}
            three = estimators.zero3(params, largest_layer=layer, offload=moved, zero_init=init, **known)
            matches = {("3", "gpu"): three.gpu, ("3", "host"): three.host}
            if moved is not Offload.ALL:
                two = estimators.zero2(params, offload=bool(moved), **known)
                matches |= {("2", "gpu"): two.gpu, ("2", "host"): two.host}
            for key, bytes in matches.items():
                assert bytes == int(eval(STATED[(*key, moved)], {}, scope)), (key, moved, scope)


def rows() -> Iterator[tuple[str, str, str]]:
    """What was published, as published and as computed here: the table of docs/placement.md."""
    two, three = estimators.zero2, estimators.zero3
    for moved, host, gpu in ((True, 127.45, 5.31), (False, 127.45, 15.93)):
        got = two(2851e6, gpus=8, offload=moved)
        yield f"ZeRO-2, 2851M, 8 GPUs{', optimizer to CPU' if moved else ''}: host, GPU", *_gb(host, gpu, got)
    for moved, init, host, gpu in (
        (Offload.ALL, True, 71.69, 0.12),
        (Offload.ALL, False, 127.45, 0.12),
        (Offload.OPTIMIZER, True, 63.72, 0.78),
        (Offload.OPTIMIZER, False, 127.45, 0.78),
        (Offload.NOTHING, True, 1.43, 6.09),
        (Offload.NOTHING, False, 127.45, 6.09),
    ):
        got = three(2851e6, largest_layer=32e6, gpus=8, offload=moved, zero_init=init)
        what = f", {moved} to CPU" if moved else ""
        yield f"ZeRO-3, 2851M{what}{'' if init else ', no zero.Init'}: host, GPU", *_gb(host, gpu, got)
    for gbps, published in ((10, 7), (27, 17), (48, 26)):
        made = offload.stream(70.6e9, gbps=gbps, batch=96).tokens_per_second
        assert published / 1.3 < made < published * 1.3
        yield f"DeepNVMe, LLAMA-3-70B, batch 96, {gbps} GB/s", f"{published} tokens/s", f"{made:.1f}"
    for what, ait, gbps, stated, least in (
        ("parameters, batch 1", offload.ait_parameters(1024, 1), 70, "over 50 %", 0.5),
        ("optimizer, batch 1, 4 x 70 GB/s", offload.ait_optimizer(1024, 1), 280, "50 %", 0.5),
        ("optimizer, batch 2, 1.5 TB/s", offload.ait_optimizer(1024, 2), 1500, "90 %", 0.9),
        ("activations, hidden 2K, 2 GB/s", offload.ait_activations(2048), 2, "over 50 %", 0.5),
        ("activations, hidden 8K, 3 GB/s", offload.ait_activations(8192), 3, "over 80 %", 0.8),
    ):
        reached = offload.efficiency(ait, gbps, 70)
        assert least < reached < least * 1.2
        yield f"ZeRO-Infinity, {what}", stated, f"{100 * reached:.0f} %"


def _gb(host: float, gpu: float, got: estimators.Needs) -> tuple[str, str]:
    shown = f"{got.host / GIB:.2f}, {got.gpu / GIB:.2f} GiB"
    assert shown == f"{host:.2f}, {gpu:.2f} GiB"
    return shown, shown


def test_published_numbers_are_reproduced_and_the_document_has_them() -> None:
    text = (Path(__file__).parents[2] / "docs" / "placement.md").read_text()
    for row in rows():
        assert f"| {' | '.join(row)} |" in text, row
    large = [estimators.zero3(737.67e6, largest_layer=32.9e6, gpus=4, offload=of).gpu >> 20 for of in Offload]
    assert large == [3291, 477, 125]


def test_activations_are_those_of_the_paper() -> None:
    """Per layer s b h (34 + 5 a s / h); GPT-3: 5 a s / h is 80 (arXiv 2205.05198, section 4)."""
    gpt3 = shape_of(175e9)

    def kept(mode: Checkpointing, precision: Precision = Precision.BF16) -> float:
        return estimators.activations(gpt3, sequence=2048, batch=1, checkpointing=mode, precision=precision)

    head = 2048 * 4 * (12288 + 50257)
    assert kept(Checkpointing.NONE) - head == pytest.approx(2048 * 12288 * 96 * (34 + 80))
    assert kept(Checkpointing.SELECTIVE) - head == 2048 * 12288 * 96 * 34
    assert kept(Checkpointing.FULL) - head == 2048 * 12288 * (96 * 2 + 34)
    logits = 4 * 2048 * 50257
    assert kept(Checkpointing.FULL, Precision.FP32) - logits == 2 * (kept(Checkpointing.FULL) - logits)


@pytest.mark.parametrize(
    ("text", "params"), [("7B", 7e9), ("70b", 7e10), ("124M", 1.24e8), ("1.5e9", 1.5e9), (" 0.4 T ", 4e11)]
)
def test_sizes_are_read_as_people_write_them(text: str, params: float) -> None:
    assert parse_params(text) == pytest.approx(params)


def test_a_size_has_the_shape_of_the_nearest_published_model() -> None:
    names_of = [shape_of(parse_params(text)).name for text in ("7B", "8B", "70B", "405B", "1.5B", "30B")]
    assert names_of == ["Llama 2 7B", "Llama 3 8B", "Llama 3 70B", "Llama 3.1 405B", "GPT-2 XL", ""]
    rule = by_rule(175e9)
    assert 12 * rule.layers * rule.hidden**2 == pytest.approx(175e9, rel=0.05)
    assert shape_of(7e9).largest_layer == 32_000 * 4_096


RING = tuple(Curve(collective=each, points=((GIB, 360.0),), ranks=8) for each in Collective)
H100 = NodeClass(
    name="8x H100",
    gpus=8,
    usable=4,
    gpu_bytes=80e9,
    tflops={Precision.BF16: 989.0},
    bandwidths=Bandwidths(curves=RING, nvls=False),
    h2d_gbps=55.0,
    h2d_all_gbps=25.0,
    host_bytes=2000 * GIB,
    nvme_read_gbps=20.0,
    nvme_write_gbps=10.0,
)


def job(params: float, **fields: Any) -> Training:
    return Training(shape=shape_of(params), **fields)


def ways(params: float, facts: NodeClass = H100, **fields: Any) -> dict[Way, Option]:
    return {option.way: option for option in decide(job(params, **fields), facts)}


def test_a_small_model_fits_on_one_node_and_computing_limits_it() -> None:
    one = ways(7e9)[Way.NODE]
    assert (one.fits, one.scheme, one.fewest, one.limit) == (True, "ZeRO-1", 2, Limit.COMPUTE)
    compute = 4 * (2 * 7e9 * 4096 + 4 * 4096**2 * 4096 * 32) / (0.4 * 989e12)
    gathers = 2 * 7e9 * 2 * 7 / 8 / 360e9
    assert one.step.most == pytest.approx(compute + gathers)
    assert one.step.least == pytest.approx(compute)
    assert Way.MORE not in ways(7e9)
    assert ways(1e9)[Way.NODE].scheme == "DDP"


@pytest.mark.parametrize(
    ("params", "facts", "way", "fits", "limit"),
    [
        (70e9, H100, Way.NODE, False, Limit.GPU_MEMORY),
        (70e9, H100, Way.MORE, True, Limit.NETWORK),
        (70e9, replace(H100, usable=2), Way.MORE, False, Limit.NODES),
        (70e9, H100, Way.CPU, True, Limit.COMPUTE),
        (70e9, replace(H100, h2d_all_gbps=1.0), Way.CPU, True, Limit.HOST_BUS),
        (405e9, H100, Way.CPU, False, Limit.HOST_MEMORY),
        (405e9, H100, Way.NVME, True, Limit.DISK),
        (70e9, replace(H100, host_bytes=None), Way.CPU, None, Limit.UNKNOWN),
        (70e9, replace(H100, h2d_all_gbps=None), Way.CPU, True, Limit.UNKNOWN),
        (70e9, replace(H100, nvme_read_gbps=None), Way.NVME, None, Limit.UNKNOWN),
        (70e9, replace(H100, h2d_all_gbps=None), Way.NVME, None, Limit.UNKNOWN),
        (7e9, replace(H100, gpu_bytes=None), Way.NODE, None, Limit.UNKNOWN),
        (7e9, replace(H100, gpu_bytes=6e9), Way.NVME, False, Limit.GPU_MEMORY),
        (7e9, replace(H100, tflops={}), Way.NODE, True, Limit.UNKNOWN),
    ],
)
def test_what_limits_and_what_is_unknown(
    params: float, facts: NodeClass, way: Way, fits: bool | None, limit: Limit
) -> None:
    option = ways(params, facts)[way]
    assert (option.fits, option.limit) == (fits, limit)


def test_an_unmeasured_part_makes_the_time_a_lower_bound() -> None:
    whole, no_bus = ways(7e9)[Way.NODE], ways(7e9, replace(H100, bandwidths=None))[Way.NODE]
    assert whole.step.most is not None
    assert (no_bus.step.least, no_bus.step.most) == (whole.step.least, None)
    disk, unwritten = ways(405e9)[Way.NVME], ways(405e9, replace(H100, nvme_write_gbps=None))[Way.NVME]
    assert disk.step.least == pytest.approx((6 + 16) * 405e9 / 20e9 + 18 * 405e9 / 10e9)
    assert unwritten.step.least == pytest.approx(22 * 405e9 / 20e9)
    assert "writes to NVMe" in unwritten.unknown[0]


def test_the_bus_costs_what_zero_infinity_says() -> None:
    """All states on the host, nothing beside: its efficiency follows from the seconds moved and computed."""
    facts, plain = replace(H100, bandwidths=None), job(70e9, sequence=1024)
    moved = offload.to_host(70e9, weights=2, all_states=True, recompute=True)
    bus = moved.overlapped / (8 * 25e9)
    computed = 8 * 70e9 * 1024 / (989e12 * offload.MFU)
    assert computed / (computed + bus) == pytest.approx(
        offload.efficiency(offload.ait_parameters(1024, 1), 8 * 25, 989 * offload.MFU)
    )
    assert {o.way: o for o in decide(plain, facts)}[Way.CPU].offload is Offload.OPTIMIZER


def test_the_fewest_nodes_are_taken_and_the_best_way_is_the_plainest() -> None:
    more = ways(70e9)[Way.MORE]
    need = estimators.zero3(70e9, largest_layer=128_256 * 8192, gpus=8, nodes=more.nodes - 1)
    assert (more.nodes, need.gpu > estimators.usable(80e9)) == (3, True)
    slow = replace(H100, name="slow", tflops={Precision.BF16: 100.0})
    pairs = [(facts, option) for facts in (slow, H100) for option in decide(job(7e9), facts)]
    taken = best(pairs, job(7e9))
    assert (taken[0].name, taken[1].way) == ("8x H100", Way.NODE)
    assert best([(replace(c, usable=0), o) for c, o in pairs], job(7e9)) is None


@pytest.mark.parametrize("way", list(Way))
def test_the_largest_model_is_the_last_that_fits(way: Way) -> None:
    plain = job(1e9)
    params = largest(H100, way, plain)
    known, larger = (decide(Training(shape=by_rule(params * factor)), H100) for factor in (1, 1.1))
    fitting = [{option.way: option.fits for option in of}.get(way, True) for of in (known, larger)]
    assert fitting in ([True, False], [True, True])
    assert largest(replace(H100, gpu_bytes=None), way, plain) is None


@pytest.mark.parametrize(
    ("fields", "states"),
    [
        ({"optimizer": Optimizer.ADAM_8BIT}, 10),
        ({"optimizer": Optimizer.SGD, "precision": Precision.FP16}, 12),
        ({"precision": Precision.FP32}, 12),
        ({"precision": Precision.FP8, "optimizer": Optimizer.ADAFACTOR}, 8),
    ],
)
def test_each_optimizer_and_precision_has_its_bytes(fields: dict[str, Any], states: int) -> None:
    assert job(7e9, **fields).bytes.states == states


def fleet(cluster: Cluster) -> None:
    """Two classes; of the first, one node is tainted, one cordoned, one stale."""
    cluster.add(report("h-1"), report("h-2"), labels={"nvidia.com/gpu.memory": "81559"})
    cluster.add(report("h-3"), taints=(taint(f"{names.TAINT_THROTTLED}=thermal"),))
    cluster.add(report("h-4"), unschedulable=True)
    unloaded = {"offload": OffloadStatus(), "bandwidth": api.BandwidthStatus(all_reduce=130)}
    v100 = report("v-1", product="Tesla V100-SXM2-32GB", **unloaded)
    cluster.add(report("h-5", probes=[health(9000.0)]), v100, report("c-1", gpus=api.GpusStatus()))


def test_nodes_are_not_counted_for_memory_that_nobody_read(cluster: Cluster) -> None:
    cluster.add(report("g-1", product="NVIDIA GB200"))
    assert "more nodes ZeRO-3 - ?/? - - unknown" in shown("--model", "70B")


def test_a_person_reads_what_fits_who_is_left_out_and_what_to_ask_for(cluster: Cluster) -> None:
    fleet(cluster)
    output = shown("--model", "7B")
    assert "8x H100 80GB HBM3, nvlink: 2 of 5 nodes usable" in output
    assert "without h-3 (tainted throttled=thermal), h-4 (cordoned), h-5 (stale: last read" in output
    assert "one node ZeRO-1 2..8" in output
    assert "NVMe offload: needs 126 GB on the disk; not measured: writes to NVMe" in output
    assert "8x V100-SXM2-32GB, nvlink: 1 of 1 nodes usable" in output
    assert "not measured: host memory of a node (NodeReport status.offload)" in output
    assert "Bigger GPUs: yes, 8x H100 80GB HBM3, nvlink: ZeRO-1" in output
    assert "More GPUs: not needed." in output
    assert (
        "Ask for: nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3, nodegauge.dev/interconnect=nvlink" in output
    )
    assert "nodegauge.dev/busbw-allgather > 324" in output
    output = shown("--model", "405B")
    assert "Bigger GPUs: none here is big enough; 8 in one node need" in output
    assert "More GPUs: too few usable nodes; 20 of 8x H100 80GB HBM3, nvlink would do." in output
    assert "Take: NVMe offload of 8x H100 80GB HBM3, nvlink, ZeRO-3 all." in output


def test_the_overview_fits_a_screen(cluster: Cluster) -> None:
    fleet(cluster)
    assert len(zero().output.splitlines()) <= 24
    overview = shown()
    assert "8x H100 80GB HBM3, nvlink 2/5" in overview
    assert "?: not measured: host memory of a node" in overview


def test_two_classes_are_compared_by_tokens(cluster: Cluster) -> None:
    fleet(cluster)
    cluster.add(report("a-1", product="NVIDIA A100-SXM4-80GB"))
    output = shown("--model", "7B", "--compare", "H100", "a100")
    assert "one node: the first makes 3.17 times the tokens of the second." in output
    assert "CPU offload: not comparable: one" in output
    assert "V100" not in output


def test_the_manifest_asks_for_what_the_way_needs(cluster: Cluster) -> None:
    fleet(cluster)
    [made] = yaml.safe_load_all(zero("--model", "30B", "--manifest", "--way", "cpu").output)
    pod = made["spec"]["template"]["spec"]
    required = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    [term] = required["nodeSelectorTerms"]
    wanted = {each["key"]: (each["operator"], each["values"]) for each in term["matchExpressions"]}
    assert wanted["nodegauge.dev/h2d-gbps"] == ("Gt", ["22"])
    need = ways(30e9)[Way.CPU].host_bytes / 8 / GIB
    assert int(wanted["nodegauge.dev/host-memory-per-gpu"][1][0]) < need <= 230
    assert pod["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    outcome = zero("--model", "405B", "--manifest", "--way", "node")
    assert (outcome.exit_code, "nothing here is known to hold" in outcome.output) == (1, True)


def test_json_has_the_whole_decision(cluster: Cluster) -> None:
    fleet(cluster)
    body = json.loads(zero("--model", "70B", "--format", "json").output)
    first = body["classes"][0]
    assert (first["facts"]["name"], first["nodes"]) == ("8x H100 80GB HBM3, nvlink", ["h-1", "h-2"])
    assert [way["way"] for way in first["ways"]] == ["one node", "more nodes", "CPU offload", "NVMe offload"]
    assert first["ways"][1]["nodes"] == 3
    assert body["take"]["labels"][0]["key"] == "nvidia.com/gpu.product"
    alone = json.loads(zero("--format", "json").output)
    assert alone["classes"][0]["largest"]["one node"] > 1e10


@pytest.mark.parametrize(
    ("status", "node", "why"),
    [
        ({"verdict": Verdict.UNKNOWN}, {}, "health Unknown"),
        ({"probes": []}, {}, "never read"),
        ({}, {"ready": False}, "not Ready"),
        ({}, {"taints": (taint("team=a:NoExecute"),)}, "tainted team=a"),
        ({}, {"taints": (taint(f"{names.TAINT_THROTTLED}=x:PreferNoSchedule"),)}, "tainted throttled=x"),
        ({}, {"unschedulable": True}, "cordoned"),
    ],
)
def test_a_node_that_no_job_gets_is_left_out(cluster: Cluster, status: Any, node: Any, why: str) -> None:
    cluster.add(report("h-1"))
    cluster.add(report("h-2", **status), **node)
    assert f"1 of 2 nodes usable without h-2 ({why})".lower() in shown("--model", "7B").lower()
    assert f"left out: h-2 ({why}).".lower() in shown("--params", "7B").lower()
    alone = f"measured on nodes that are not open to jobs: h-2 ({why})."
    assert alone.lower() in shown("--params", "7B", "--node", "h-2").lower()


def test_gpu_devices_tolerated_taints_and_soft_ones_close_nothing(cluster: Cluster) -> None:
    cluster.add(report("h-1"), taints=(taint("nvidia.com/gpu"), taint("x:PreferNoSchedule")))
    assert "1 of 1 nodes usable" in shown("--model", "7B")


def test_what_cannot_be_read_is_said(cluster: Cluster) -> None:
    cluster.nodes = None
    cluster.add(replace(report("h-1"), left_out=("status.load: expected an object",)))
    cluster.add(report("h-2", offload=OffloadStatus(nvme_problem="no such directory")))
    output = shown("--model", "7B")
    assert "Nodes cannot be listed, so cordons are unknown: nodes is forbidden" in output
    assert "Reports of another version, not read in full: h-1." in output
    assert "NVMe was not read: no such directory" in output
    assert "Memory of a GPU from its name, 80 GB." in output
    assert "Copies from the host were not measured on h-2." in output


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--model", "7Q"), "'--model': '7Q': expected parameters such as 7B, 124M or 1.5e9"),
        (("--model", "0"), "from 1M to 100T"),
        (("--model", "7B", "--sequence", "0"), "'--sequence'"),
        (("--model", "7B", "--params", "7e9"), "use --model (what fits, and how) or --params"),
        (("--model", "7B", "--busbw", "3"), "--busbw requires --params"),
        (("--batch", "2"), "--batch requires --model"),
        (
            ("--model", "7B", "--compare", "H100", "B200"),
            "no class 'B200'; there are: 8x H100 80GB HBM3, nvlink",
        ),
        (("--model", "7B", "--compare", "8x", "V100"), "2 classes have '8x' in their name"),
        (("--model", "7B", "--compare", "V100", "v100"), "both names are of the same class"),
        (("--model", "7B", "--node", "a", "--reference"), "only one of --node, --report and --reference"),
    ],
)
def test_wrong_input_names_the_field_and_the_way_out(
    cluster: Cluster, arguments: tuple[str, ...], part: str
) -> None:
    fleet(cluster)
    outcome = zero(*arguments)
    assert (outcome.exit_code, part in flat(outcome)) == (2, True), outcome.output


def test_without_cluster_rights_or_gpus_it_says_the_way_out(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "the cluster has no NodeReport yet: kubectl get gpuvalidationpolicies" in flat(zero())
    cluster.add(report("c-1", gpus=api.GpusStatus()))
    assert "no GPU was read on the cluster (1 NodeReports): kubectl describe" in flat(zero("--model", "7B"))

    async def refuse(**_: Any) -> None:
        raise Forbidden("nodereports is forbidden", status=403)

    monkeypatch.setattr("nodegauge_operator.kube.client.connect", refuse)
    outcome = zero("--model", "7B")
    assert "no right to list nodereports.nodegauge.dev: nodereports is forbidden" in flat(outcome)
    assert (outcome.exit_code, "use --reference" in flat(outcome)) == (1, True)
    assert "These are published numbers of other machines." in shown("--model", "7B", "--reference")
