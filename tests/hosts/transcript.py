"""What a reader sees of the story, in Ansible's own lines; those that are left out leave "..." behind."""

import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from support.playbook import COLLECTION, Played

README = COLLECTION / "README.md"
BEGIN, END = "<!-- make hosts: begin -->\n", "<!-- make hosts: end -->\n"
TYPO = "validate_expected_gpu"
"""Of validate_expected_gpus: without the check, no number of GPUs would be expected of any host."""
TASK = re.compile(r"^(?:TASK|PLAY RECAP|PLAY|RUNNING HANDLER)\b.*$", re.MULTILINE)
RESULT = re.compile(r"^(?:ok|fatal|changed|skipping|included): \[", re.MULTILINE)
VERDICT = "Give the verdict]"
NUMBERED = re.compile(r" +\d+\. ")
WIDTH = 150
SHOWN = 3


@dataclass(frozen=True)
class Step:
    """One command as a reader types it, and what a play said; None of another command."""

    command: str
    played: Played | None


def sections(output: str) -> Iterator[tuple[str, str]]:
    marks = [*TASK.finditer(output)]
    for mark, following in zip(marks, [*(each.start() for each in marks[1:]), len(output)], strict=False):
        yield mark.group(), output[mark.end() : following]


def results(section: str) -> Iterator[str]:
    starts = [match.start() for match in RESULT.finditer(section)]
    for start, end in zip(starts, [*starts[1:], len(section)], strict=False):
        head, *body = section[start:end].splitlines()
        yield "\n".join([head, *takewhile(lambda line: line.startswith("    "), body)])


def short(line: str) -> str:
    return line.rstrip() if len(line) <= WIDTH else f"{line[:WIDTH].rsplit(' ', 1)[0]} ..."


def message(result: str, *, steps: bool) -> list[str]:
    head, *body = result.splitlines()
    if "    msg: |-" in body:
        body = body[body.index("    msg: |-") + 1 :]
    kept = [line[4:] for line in body if steps or not NUMBERED.match(line)]
    return [short(line) for line in (head, *kept)]


def cut(played: Played, *, steps: bool = True) -> str:
    """Failed verdicts, one that passed, and the recap's first lines; `steps`: what to do."""
    lines: list[str] = []
    for title, section in sections(played.output):
        if title.startswith("PLAY RECAP"):
            recap = [re.sub(r" +", " ", line).rstrip() for line in section.splitlines() if " : ok=" in line]
            lines += [title.rstrip("* "), *recap[:SHOWN], *(["..."] if len(recap) > SHOWN else [])]
            continue
        messages = sorted(results(section), key=lambda result: result[result.index("[") :])
        bad = [result for result in messages if result.startswith("fatal: ")]
        if not bad and VERDICT not in title:
            continue
        good = [result for result in messages if result.startswith("ok: ")]
        lines += [title.rstrip("* ")]
        for number, result in enumerate([*bad, *good[:1]]):
            lines += message(result, steps=steps and number == 0)
        lines += ["..."] * (len(good) > 1)
    return "\n".join(lines)


def render(steps: Sequence[Step], count: int) -> str:
    text = [f'$ make hosts ARGS="--hosts {count}" &', "$ export ANSIBLE_CONFIG=.hosts/ansible.cfg"]
    played: list[Played] = []
    for step in steps:
        text.append(f"$ {step.command}")
        if step.played is not None:
            text += [cut(step.played, steps=not any(VERDICT in each.output for each in played)), ""]
            played.append(step.played)
    return "```\n" + "\n".join(text).rstrip() + "\n```\n"


def shown() -> str:
    return README.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]


def compare(text: str, *, write: bool, say: Callable[[str], None]) -> int:
    """0 where the README shows this text, or now does."""
    old = shown()
    if write:
        whole = README.read_text(encoding="utf-8")
        README.write_text(whole.replace(f"{BEGIN}{old}{END}", f"{BEGIN}{text}{END}"), encoding="utf-8")
        say(f"written into {README.name}")
    elif old != text:
        difference = difflib.unified_diff(
            old.splitlines(), text.splitlines(), "README.md", "seen", lineterm=""
        )
        say("\n".join(difference))
        say('ansible/README.md shows something else: make hosts ARGS="--once --write" writes what was seen')
        return 1
    return 0
