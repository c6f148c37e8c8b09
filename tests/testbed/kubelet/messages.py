"""A container's last words: the termination message as a kubelet picks it up.

Of a longer message a kubelet keeps the end (getTerminationMessage in pkg/kubelet/kuberuntime calls
tail.ReadAtMost).  Limits are those of Kubernetes: 4096 bytes a container, 12 KiB a pod
(MaxContainerTerminationMessageLength, MaxPodTerminationMessageLogLength), and for FallbackToLogsOnError the
log's last 2048 bytes or 80 lines.
"""

from __future__ import annotations

import os
from pathlib import Path

MESSAGE_BYTES = 4096
MESSAGE_BYTES_POD = 12288
LOG_BYTES, LOG_LINES = 2048, 80
FALLBACK = "FallbackToLogsOnError"


def last_words(message: Path, output: Path, *, code: int, policy: str, containers: int) -> str:
    """The last bytes of the message file, or the end of the log after a failure if asked for."""
    limit = min(MESSAGE_BYTES, MESSAGE_BYTES_POD // containers)
    try:
        with message.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - limit))
            text = file.read(limit)
    except OSError:
        text = b""
    if not text and code and policy == FALLBACK:
        lines = output.read_bytes()[-LOG_BYTES:].splitlines(keepends=True)
        text = b"".join(lines[-LOG_LINES:])
    return text.decode(errors="replace")
