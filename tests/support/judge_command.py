"""`nodegauge judge` in this process."""

from pathlib import Path

from click.testing import CliRunner, Result

from nodegauge_cli.__main__ import main
from nodegauge_contract import Result as Document
from nodegauge_contract import encode

FIXTURES = Path(__file__).parents[1] / "fixtures"


def judge(*arguments: str | Path, stdin: bytes | str | Document | None = None) -> Result:
    data = encode(stdin) if isinstance(stdin, Document) else stdin
    return CliRunner().invoke(main, ["judge", *map(str, arguments)], input=data)


def flat(outcome: Result) -> str:
    return " ".join(outcome.output.split())


def written(path: Path, content: Document | str) -> Path:
    path.write_bytes(encode(content) if isinstance(content, Document) else content.encode())
    return path
