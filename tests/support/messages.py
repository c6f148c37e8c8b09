"""Documents that are no result of this run, each with a name: crashes, liars and attackers."""

import contextlib
import json
from typing import Any

from msgspec.structs import replace

import support.results as made
from nodegauge_contract import encode
from nodegauge_operator import names
from nodegauge_operator.core.context import run_id
from nodegauge_operator.core.model import PodView
from support.api_server import copied
from support.objects import addressed, document


def hostile(pod: PodView) -> dict[str, str]:
    """By name: what the operator may find instead of the result of `pod`'s run."""
    plain = encode(document(made.titan(), pod))
    good = plain.decode()
    whole: dict[str, Any] = json.loads(plain)
    run = run_id(report_uid=pod.owner_uid, probe=pod.probe, number=pod.number - 1)
    rows = {"rows": 256} | {f"m{n}": {"each": [0] * 9} for n in range(300)}
    return {
        "garbage": "Segmentation fault (core dumped)",
        "binary": "\x00\x01\ufffd\ufffd",
        "html": "<html><body>502 Bad Gateway</body></html>",
        "another JSON": '{"status": "ok"}',
        "a list": "[]",
        "a number": "17",
        "half a document": good[: len(good) // 2],
        "a table that unfolds to too much": json.dumps(whole | {"sensors": rows}),
        "a table of too many rows": json.dumps(whole | {"gpus": whole["gpus"] | {"rows": 10**9}}),
        "a column of another length": json.dumps(whole | {"gpus": whole["gpus"] | {"index": [0]}}),
        "huge": "x" * 1_000_000,
        "deep nesting": "[" * 4000,
        "deep nesting within": json.dumps(whole)[:-1] + ',"junk":' + "[" * 50_000,
        "wrong types": json.dumps(whole | {"gpus": "eight"}),
        "a number for a name": json.dumps(whole | {"node": 7}),
        "too many GPUs": json.dumps(whole | {"gpus": [{"index": n} for n in range(65)]}),
        "an integer beyond 64 bit": json.dumps(whole | {"duration_ms": 2**70}),
        "unknown major version": json.dumps(whole | {"version": "2.0"}),
        "no version": json.dumps(whole | {"version": ""}),
        "another schema": json.dumps(whole | {"schema": "example.com/other"}),
        "no probe": json.dumps({k: v for k, v in whole.items() if k != "probe"}),
        "blanks": " \n ",
        "wrong run": json.dumps(whole | {"run": "0" * 20}),
        "the run before": addressed(
            made.titan(), replace(pod, name=names.pod_name(probe=pod.probe, run=run))
        ),
        "no run": json.dumps(whole | {"run": ""}),
        "other node": json.dumps(whole | {"node": "node-2"}),
        "other probe": json.dumps(whole | {"probe": "nccl"}),
        "other node in smileys": json.dumps(whole | {"node": "\U0001f600" * 100, "run": "\U0001f600" * 100}),
        "no GPUs": addressed(replace(made.titan(), gpus=[]), pod),
    }


def spoilt(document: Any, changes: list[tuple[tuple[Any, ...], Any]]) -> Any:
    """The JSON document with these values instead; changes of a place that is gone are left out."""
    document = copied(document)
    for path, value in changes:
        at = document
        with contextlib.suppress(LookupError, TypeError):
            for key in path[:-1]:
                at = at[key]
            at[path[-1]] = copied(value)
    return document
