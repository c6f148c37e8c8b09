"""The BMC reader's settings: read once from the environment; the chart writes these variables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from nodegauge_operator.settings import Reader, SettingsError


class Settings(Struct, frozen=True, kw_only=True):
    """Settings of one reader.  Times in seconds."""

    inventory: Path
    """Folder with the files of the Secret."""
    instance: str = "nodegauge"
    """The release; the reader deletes no object of another one."""
    interval: float = 300.0
    """Between two readings of one BMC."""
    deadline: float = 60.0
    """For one reading of one BMC."""
    timeout: float = 10.0
    """For one request to a BMC."""
    concurrency: int = 96
    """BMCs that are read at a time.  96 read 1,000 BMCs of 5 s each in a minute; each takes about 2 MB."""
    node_selector: str = ""
    """Nodes that a pattern in `_defaults` applies to."""
    http_port: int = 8080
    """/healthz, /readyz and /metrics.  0 picks a free one."""
    http_host: str = ""
    """Address to listen on; by default all."""
    log_level: str = "info"
    """debug, info, warning or error."""
    log_format: str = "json"
    """json or text."""


def parse(environ: Mapping[str, str]) -> Settings:
    """Settings from environment variables.  Raises `SettingsError` naming every bad one."""
    read = Reader(environ)
    settings = Settings(
        inventory=Path(
            read.text("NODEGAUGE_BMC_INVENTORY", required="the folder that the Secret is mounted at")
        ),
        instance=read.text("NODEGAUGE_INSTANCE") or "nodegauge",
        interval=read.duration("NODEGAUGE_BMC_INTERVAL", 300.0, low=10, high=86_400),
        deadline=read.duration("NODEGAUGE_BMC_DEADLINE", 60.0, low=1, high=600),
        timeout=read.duration("NODEGAUGE_BMC_TIMEOUT", 10.0, low=0.1, high=120),
        concurrency=read.number("NODEGAUGE_BMC_CONCURRENCY", 96, int, low=1, high=1000),
        node_selector=read.text("NODEGAUGE_BMC_NODE_SELECTOR"),
        http_port=read.number("NODEGAUGE_HTTP_PORT", 8080, int, low=0, high=65_535),
        http_host=read.text("NODEGAUGE_HTTP_HOST"),
        log_level=read.choice("NODEGAUGE_LOG_LEVEL", ("info", "debug", "warning", "error")),
        log_format=read.choice("NODEGAUGE_LOG_FORMAT", ("json", "text")),
    )
    if read.errors:
        raise SettingsError("invalid settings:\n  " + "\n  ".join(read.errors))
    return settings
