"""What a look-up answered, kept in a file as long as nothing that it depends on has changed.

apt takes seconds to say which versions it would download, and says the same until its lists or sources
change.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path

APT = (
    Path("/var/lib/apt/lists"),
    Path("/etc/apt/sources.list"),
    Path("/etc/apt/sources.list.d"),
    Path("/etc/apt/preferences"),
    Path("/etc/apt/preferences.d"),
)


def recall(file: Path, mark: str, ask: Callable[[], list[str]]) -> list[str]:
    """The answer in `file` if it was given under the same mark; else a new one, which is kept."""
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        if kept["mark"] == mark:
            return list(map(str, kept["answer"]))
    except (OSError, ValueError, KeyError, TypeError):
        pass  # none yet, or none that can be read
    answer = ask()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"mark": mark, "answer": answer}), encoding="utf-8")
    return answer


def apt_state(locations: Iterable[Path] = APT, *, config: str = "") -> str:
    """A mark that changes when apt may answer otherwise: its lists and settings by name, size and time.

    `config` is APT_CONFIG, where `aptlists` has set it.
    """
    result = hashlib.sha256()
    own = [Path(config).parent / "lists"] if config else []
    for location in (*locations, *own):
        for file in sorted(location.rglob("*")) if location.is_dir() else [location]:
            if file.is_file():
                stat = file.stat()
                result.update(f"{file} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return result.hexdigest()


def contents(files: Iterable[Path]) -> str:
    """A mark that changes with the contents of files and folders."""
    result = hashlib.sha256()
    for location in files:
        for file in sorted(location.rglob("*")) if location.is_dir() else [location]:
            if file.is_file() and "__pycache__" not in file.parts and ".egg-info" not in str(file):
                result.update(
                    f"{file.relative_to(location)} ".encode() + hashlib.sha256(file.read_bytes()).digest()
                )
    return result.hexdigest()
