"""A judge that answers as told.  `saying` writes answers into a document, where a firmware version would be;
`listening` lets the operator hear them.  All else is the real judge's."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Result
from nodegauge_judge import Answer, Finding, Judgement, Load, Probe, Psu, Severity, Verdict, judge_health
from nodegauge_operator.core import gates
from nodegauge_operator.core.probes import health

BAD, GOOD, NO_LOAD, UNSURE = Answer.BAD, Answer.GOOD, Answer.NO_LOAD, Answer.UNSURE
SHORT = {"b": BAD, "g": GOOD, "n": NO_LOAD, "u": UNSURE}
MARK = "told "


@cache
def saying(codes: str, *, load: bool = True, psu: str = "") -> Result:
    """A pair of TITANs of which the judge will say "hot=b gpu-lost=g", and good of the rest."""
    text = f"{MARK}{codes};{'loaded' if load else 'idle'};{psu}"
    return made.with_gpu(made.titan(), 0, vbios=text)


def _judge(result: Result, **how: Any) -> Judgement:
    judgement = judge_health(result, **how)
    text = result.gpus[0].vbios if result.gpus else ""
    if not isinstance(text, str) or not text.startswith(MARK):
        return judgement
    codes, load, psu = text.removeprefix(MARK).split(";")
    stated = {code: SHORT[letter] for code, _, letter in (word.partition("=") for word in codes.split())}
    of_health = [code for code in gates.GATES if gates.PROBES[code] is Probe.HEALTH]
    answers = dict.fromkeys(of_health, GOOD) | stated
    findings = [
        Finding(code=code, severity=Severity.FAIL, subject="GPU 0", message=f"{gates.TITLES[code]}: told.")
        for code, answer in answers.items()
        if answer is BAD
    ]
    return replace(
        judgement,
        verdict=Verdict.FAIL if findings else Verdict.PASS,
        findings=[*findings, *(f for f in judgement.findings if f.code not in answers)],
        answers=answers,
        load=Load.LOADED if load == "loaded" else Load.IDLE,
        psu=Psu(psu) if psu else None,
    )


@contextmanager
def listening() -> Iterator[None]:
    """Within it, the operator's judge is the one that answers as told."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(health, "judge_health", _judge)
        yield
