"""Is a daemon alive, and does it do its work: three pages, as orchestrators and load balancers ask for them.

/livez     200 as long as the event loop turns: a daemon that does not answer should be started again
/readyz    200 if it does all of its work, else 503 with one line for each thing that is missing
/healthz   200; both, with facts for a person, as JSON
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus

from kvdaemon.http import Answer, Page, json_page, words_page


@dataclass(frozen=True, slots=True)
class Health:
    """A daemon at one moment."""

    missing: Sequence[str] = ()
    """Why it is not ready, one line each; empty: it is."""
    facts: Mapping[str, object] = field(default_factory=dict)


def health_pages(health: Callable[[], Health]) -> dict[str, Page]:
    """The three pages, by path."""

    def ready() -> Answer:
        missing = health().missing
        if not missing:
            return words_page(HTTPStatus.OK, "ok")
        return words_page(HTTPStatus.SERVICE_UNAVAILABLE, "\n".join(missing))

    def facts() -> Mapping[str, object]:
        now = health()
        return {**now.facts, "ready": not now.missing, "missing": list(now.missing)}

    return {"/livez": lambda: words_page(HTTPStatus.OK, "ok"), "/readyz": ready, "/healthz": json_page(facts)}
