# nodegauge: Apache-2.0, see LICENSE
"""What is wrong with the variables that people gave a role: unknown names, wrong types, numbers too small.

Must not read variables by itself, and must not show what they contain beyond what Ansible's own check does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

ROLES = Path(__file__).resolve().parents[2] / "roles"
OTHERS = "nodegauge_other_variables"
"""The user's variable with names that begin like a role's and belong to something else."""
LEAST = {
    "validate_expected_gpus": 0,
    "validate_expected_nvlink_gbps": 0,
    "validate_health_timeout": 1,
    "validate_nccl_timeout": 1,
    "validate_load_seconds": 1,
    "validate_bmc_needed": 1,
    "operator_timeout": 1,
}
"""Numbers that a type alone would let be smaller; those of other variables have no bound."""
KEPT = ("type", "elements", "choices", "no_log")
"""Of an option's specification: a check of what was given needs no default."""
NAMED = 3
"""Hosts that a line names; the rest is a number."""


class Wrong(Exception):
    """A value that cannot be read; the message says why."""


def specification(role: str) -> dict[str, dict[str, Any]]:
    """The role's variables with their types, from its argument_specs.yml."""
    document = yaml.safe_load((ROLES / role / "meta" / "argument_specs.yml").read_text("utf-8"))
    options = document["argument_specs"]["main"]["options"]
    return {name: {key: option[key] for key in KEPT if key in option} for name, option in options.items()}


def unknown(role: str, names: Iterable[str], known: Iterable[str], others: Iterable[str] = ()) -> list[str]:
    """A sentence for each name that begins as the role's variables do, and is none of them."""
    known, others = list(known), set(others)
    sentences = []
    for name in sorted(set(names) - set(known) - others):
        if name.startswith(f"{role}_"):
            near = get_close_matches(name, known, n=1, cutoff=0.7)
            hint = (
                f"did you mean {near[0]}?"
                if near
                else f"`ansible-doc -t role nodegauge.gpu.{role}` lists all."
            )
            sentences.append(
                f"{name}: the role {role} has no such variable; {hint} If it belongs to something else, "
                f"name it in {OTHERS}."
            )
    return sentences


def mistyped(spec: Mapping[str, Mapping[str, Any]], given: Mapping[str, Any]) -> list[str]:
    """A sentence for each value that the role cannot use."""
    sentences = [f"{name}: {value}" for name, value in given.items() if isinstance(value, Wrong)]
    readable = {name: value for name, value in given.items() if not isinstance(value, Wrong)}
    for name, value in readable.items():
        result = ArgumentSpecValidator({name: dict(spec[name])}).validate({name: value})
        sentences += [f"{name}: {message}" for message in result.error_messages]
        number = result.validated_parameters.get(name)
        if not result.error_messages and name in LEAST and number is not None and number < LEAST[name]:
            sentences.append(f"{name}: {number} is too small; the least is {LEAST[name]}.")
    return sentences


def grouped(problems: Mapping[str, Iterable[str]], hosts: int) -> list[str]:
    """Lines, each with the hosts that it is about.  `problems`: by host, or by an empty name for what the
    play itself says; `hosts`: how many there are."""
    by_sentence: dict[str, list[str]] = {}
    for host, sentences in problems.items():
        for sentence in dict.fromkeys(sentences):
            by_sentence.setdefault(sentence, []).append(host)
    return [f"{_whose(whose, hosts)}: {sentence}" for sentence, whose in by_sentence.items()]


def _whose(whose: list[str], hosts: int) -> str:
    own = [host for host in whose if host]
    if not own:
        return "the play"
    if len(own) == hosts > NAMED:
        return f"all {hosts} hosts"
    rest = len(own) - NAMED
    return ", ".join(own[:NAMED]) + (f" and {rest} more" if rest > 0 else "")
