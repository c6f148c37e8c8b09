"""`python -m fuzz.one TARGET FOLDER [OPTION...]`: one target, guided by coverage, until its inputs are used
up."""

import random
import sys
from pathlib import Path

import atheris

WATCHED = ["nodegauge_contract", "nodegauge_judge", "nodegauge_operator", "nodegauge_cli"]
FIRST_INPUTS = 64
MAX_BYTES = 1024
"""Of an input; the choices of six changes need less."""


def main(target: str, folder: Path, *options: str) -> None:
    """Never returns: libFuzzer ends the process."""
    with atheris.instrument_imports(include=WATCHED, enable_loader_override=False):
        from fuzz.targets import TARGETS

    run = TARGETS[target]

    def one(data: bytes) -> None:
        run(atheris.FuzzedDataProvider(data))

    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    choices = random.Random(0)
    for number in range(FIRST_INPUTS):
        (corpus / f"first-{number}").write_bytes(choices.randbytes(MAX_BYTES // 4))
    limits = [f"-max_len={MAX_BYTES}", "-len_control=0", "-timeout=60", "-rss_limit_mb=4096"]
    inputs = [] if any(not option.startswith("-") for option in options) else [str(corpus)]  # or a replay's
    atheris.Setup(["fuzz", *limits, f"-artifact_prefix={folder}/", *options, *inputs], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
