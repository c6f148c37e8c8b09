"""Results of other tests: `dcgmi diag` as a table and as JSON, `dcgmi health`, gpu-burn, node health checks.

Sources: NVIDIA/DCGM, dcgmi/Diag.cpp and its user guide, versions 2 to 4; wilicc/gpu-burn, gpu_burn-drv.cpp;
Azure/azurehpc-health-checks; NVIDIA/cuda-samples, simpleP2P.cu.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from nodegauge_contract.paste import StatementKind
from nodegauge_contract.pasted.statements import Gathered

DIAG, BURN, HEALTH, CHECKS = "dcgmi diag", "gpu-burn", "dcgmi health", "node health check"
COPY, _NOT_COPIED = "simpleP2P", re.compile(r"\s*Verification error @ element \d+: val = ")
_TESTS = (
    "denylist|blacklist|nvml library|cuda main library|cuda toolkit library|permissions and os blocks|"
    "persistence mode|environment variables|page retirement(?:/row remap)?|graphics processes|inforom|"
    "fabric manager|software|integration|pcie|context create|context_create|gpu memory|memory|memtest|"
    "memory bandwidth|memory_bandwidth|sm stress|diagnostic|diagnostics|targeted stress|targeted_stress|"
    "targeted power|targeted_power|pulse test|pulse_test|eud(?: test)?|cpu eud|cpu_eud|nvbandwidth|"
    "nccl tests|nccl_tests"
)
_ROW = re.compile(rf"\s*({_TESTS})\s{{2,}}(pass|fail|skip|warn)\b(.*)$", re.IGNORECASE)
_PART = re.compile(
    r"\s{8,}(pass|fail|skip|warn)\w*\s+-\s+(.*)$|\s*GPU\s?(\d{1,2}):\s+(pass|fail|skip|warn)\b",
    re.IGNORECASE,
)
_DETAIL = re.compile(r"\s*(error|warning)(?:: GPU\s?\d{1,2})?\s{2,}(?=\S)", re.IGNORECASE)
_HEAD = re.compile(r"Successfully ran diagnostic for group|^\s*Diagnostic\s{2,}Result\s*$")
_NEW_ROW = re.compile(r"\s{0,6}\S")
SETTINGS = frozenset(
    {"persistence mode", "graphics processes", "environment variables", "permissions and os blocks",
     "denylist", "blacklist", "nvml library", "cuda main library", "cuda toolkit library"}
)  # fmt: skip
"""Tests of the software around a GPU: a failure is of its set-up (DCGM's user guide, deployment tests)."""
_GPUS = re.compile(r"GPUs?:?\s*(\d{1,2}(?:\s*,\s*\d{1,2})*)")
_BURN = re.compile(r"Gflop/s\)\s+errors:|\bBurning for \d+ sec|Tested \d+ GPUs?:|\bgpu_burn\b")
_BURN_ERRORS = re.compile(r"\berrors:\s{0,4}(\S.{0,2000}?)\s{1,4}temps:", re.IGNORECASE)
_BURN_RESULT = re.compile(r"\s*(GPU \d{1,2}): (OK|FAULTY)\s*$")
_CHECK = re.compile(r"\bnhc:\s+Health check (passed|failed):\s+(\w{1,64})")
_HEALTH = re.compile(r"\s*Overall Health:?\s+(Healthy|Warning|Failure)", re.IGNORECASE)


def read(lines: Sequence[str], gathered: Gathered) -> None:
    """Add what these tests found."""
    _diag(lines, gathered)
    _diag_json("\n".join(lines), gathered)
    _burn(lines, gathered)
    for number, line in enumerate(lines, 1):
        if _NOT_COPIED.match(line):
            gathered.add(StatementKind.WRONG_RESULTS, number, line, source=COPY)
        elif match := _CHECK.search(line):
            gathered.seen(CHECKS, number, passed=int(match[1] == "passed"))
            if match[1] == "failed":
                gathered.add(
                    StatementKind.TEST_FAILED, number, line, source=CHECKS, subject=_gpu(line) or match[2]
                )
        elif match := _HEALTH.match(line):
            gathered.seen(HEALTH, number)
            if match[1].lower() != "healthy":
                kind = (
                    StatementKind.TEST_FAILED if match[1].lower() == "failure" else StatementKind.TEST_WARNED
                )
                gathered.add(kind, number, line, source=HEALTH)


def _diag(lines: Sequence[str], gathered: Gathered) -> None:
    test = ""
    for index, line in enumerate(lines):
        number = index + 1
        if _HEAD.search(line):
            gathered.seen(DIAG, number)
            test = ""
        elif match := _ROW.match(line):
            test = match[1].lower()
            if match[2].lower() == "fail" and _has_parts(lines, index):
                continue  # the GPUs that failed follow
            details = _details(lines, index) if match[2].lower() in ("fail", "warn") else ""
            _outcome(gathered, number, match[2], test, f"{match[1]}: {match[2]}{match[3].rstrip()} {details}")
        elif test and (match := _PART.match(line)):
            status, gpus = match[1] or match[4], match[2] or f"GPU: {match[3]}"
            if status.lower() in ("fail", "warn"):
                text = f"{test}: {status} - {gpus} {_details(lines, index)}"
                _outcome(gathered, number, status, test, text)
        elif (match := _DETAIL.match(line)) and (test or DIAG in gathered.captures):
            known = any(
                statement.source == DIAG and statement.line < number
                for statement in gathered.statements.values()
            )
            if not known and match[1].lower() == "error":
                text = _joined(lines, index, match.end())
                gathered.add(StatementKind.TEST_FAILED, number, text, source=DIAG, subject=_gpu(text))


def _has_parts(lines: Sequence[str], index: int) -> bool:
    """Whether the lines below a test name GPUs that failed."""
    for line in lines[index + 1 : index + 33]:
        if _ROW.match(line):
            return False
        part = _PART.match(line)
        if part is not None and (part[1] or part[4]).lower() == "fail":
            return True
    return False


def _outcome(gathered: Gathered, number: int, status: str, test: str, text: str) -> None:
    status = status.lower()
    if status == "pass":
        gathered.seen(DIAG, number, passed=1)
    elif status == "skip":
        gathered.seen(DIAG, number)
    else:
        warned = status == "warn" or test in SETTINGS
        kind = StatementKind.TEST_WARNED if warned else StatementKind.TEST_FAILED
        gathered.add(kind, number, text, source=DIAG, subject=_gpu(text) or test, code=None)


def _details(lines: Sequence[str], index: int) -> str:
    """The first error or warning below a row, up to the next test."""
    for below in range(index + 1, min(index + 16, len(lines))):
        if _ROW.match(lines[below]):
            break
        if match := _DETAIL.match(lines[below]):
            return _joined(lines, below, match.end())
    return ""


def _joined(lines: Sequence[str], index: int, column: int) -> str:
    """A cell that goes on in the lines below, which break within words."""
    cell = lines[index][column:].rstrip()
    for line in lines[index + 1 : index + 12]:
        if _NEW_ROW.match(line[:column]) or not line.strip() or set(line.strip()) <= set("+-= "):
            break
        cell += line[column:].rstrip()
    return cell


def _gpu(text: str) -> str:
    match = _GPUS.search(text)
    return f"GPU {match[1]}" if match is not None else ""


def _diag_json(text: str, gathered: Gathered) -> None:
    for match in re.finditer(r'"DCGM (?:GPU )?Diagnostic"\s*:\s*(?=\{)', text):
        number = text.count("\n", 0, match.start()) + 1
        gathered.seen(DIAG, number)
        try:
            document, _ = json.JSONDecoder().raw_decode(text, match.end())
        except (ValueError, RecursionError):
            gathered.add(StatementKind.TEST_WARNED, number, "The JSON is cut.", source=DIAG)
            continue
        for test, status, message in _json_results(document):
            _outcome(gathered, number, status, test, message)


def _json_results(document: Any) -> Iterator[tuple[str, str, str]]:
    """Test, status and words of each result; `null` and other odd entries are skipped."""
    for category in _dicts(document.get("test_categories")):
        for test in _dicts(category.get("tests")):
            name = str(test.get("name", "test"))
            results = _dicts(test.get("results")) or _dicts([test.get("test_summary")])
            for result in results:
                status = str(result.get("status", ""))[:4].lower()
                if status in ("pass", "fail", "warn", "skip"):
                    gpus = result.get("gpu_ids", result.get("gpu_id", result.get("entity_id", "")))
                    message = result.get("warnings") or result.get("error") or ""
                    where = f" - GPU: {gpus}" if gpus != "" else ""
                    yield name.lower(), status, f"{name}: {status}{where} {_flat(message)}"


def _flat(message: Any) -> str:
    if isinstance(message, list):
        return " ".join(_flat(each) for each in message[:4])
    if isinstance(message, dict):
        return str(message.get("warning", message.get("error", "")))
    return str(message)


def _dicts(values: Any) -> list[dict[str, Any]]:
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def _burn(lines: Sequence[str], gathered: Gathered) -> None:
    if not any(_BURN.search(line) for line in lines):
        return
    for number, line in enumerate(lines, 1):
        if _BURN.search(line):
            gathered.seen(BURN, number)
        if match := _BURN_RESULT.match(line):
            if match[2] == "OK":
                gathered.seen(BURN, number, passed=1)
            else:
                gathered.add(StatementKind.TEST_FAILED, number, line, source=BURN, subject=match[1])
        elif match := _BURN_ERRORS.search(line):
            for gpu, cell in enumerate(match[1].split(" - ")):
                count = re.match(r"\s*(-?\d{1,18})", cell)
                if count is not None and (int(count[1]) or "DIED" in cell):
                    gathered.add(StatementKind.WRONG_RESULTS, number, line, source=BURN, subject=f"GPU {gpu}")
