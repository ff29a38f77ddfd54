"""Settings of the console: HTTP API, page and links."""

from __future__ import annotations

from pydantic import BaseModel, Field

from mulligan.policies.jobs.job import Seconds


class ConsoleSettings(BaseModel):
    #: Where the console listens.
    console_host: str = "127.0.0.1"
    console_port: int = Field(default=8700, ge=0, le=65535)
    #: Where people reach it, for links in alerts. None: the host and port above.
    console_url: str | None = Field(default=None, pattern=r"^https?://\S+$")
    #: Maximum bytes per request, requests per minute and token, and listeners to events.
    request_cap: int = Field(default=5_000_000, ge=1000)
    rate_limit: int = Field(default=1200, ge=1)
    listeners_cap: int = Field(default=200, ge=1)
    #: Maximum listeners of one token, or of one address without a token.
    listeners_per_caller: int = Field(default=50, ge=1)
    #: Maximum connections. One more ends the one that has waited longest for its client.
    connections_cap: int = Field(default=500, ge=10)
    #: How long a client may take to send the head of a request, and a whole body.
    head_timeout: Seconds = Field(default=10.0, gt=0)
    body_timeout: Seconds = Field(default=60.0, gt=0)
    #: Where people reach Flower. Default: where `mulligan up` serves it; without it, no links.
    flower_url: str | None = None
    #: Where people reach the runbook; alerts link to `<runbook_url>#<alert>`.
    runbook_url: str | None = None
