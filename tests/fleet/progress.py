"""What every scenario has: lines of progress, and an error for what is not as it should be."""

from __future__ import annotations

import time


class Wrong(Exception):
    """Something is not as it was, or not as it should be; the text says what."""


class Progress:
    """Lines with the time since the beginning."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """One line, at once."""
        print(f"[{time.monotonic() - self._began:6.1f} s] {text}", flush=True)
