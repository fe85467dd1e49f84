"""The `tracing` section of the agent's configuration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TracingConfig:
    """Where traces of fetches go, and how many."""

    endpoint: str
    """URL of an OTLP collector (gRPC): http://HOST:PORT, or https:// for TLS."""
    sample_ratio: float = 0.01
    """Share of the fetches without a trace context that are traced, 0 to 1. With one, its sampled flag decides."""
