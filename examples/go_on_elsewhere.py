"""An answer that goes on at another node when its engine dies in the middle of it.

    python examples/go_on_elsewhere.py "A PROMPT" http://NODE_1:8000 http://NODE_2:8000 [--max-tokens 400]

The servers are vLLM's, with the KvcastConnector and one pool. The dead engine saved the KV of the prompt and of what it
had answered, chunk by chunk, so the next server loads that and computes only what follows the last whole chunk.
"""

import argparse
import http.client
import json
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any


class LostError(Exception):
    """A server went away, or its engine did, before the answer's end."""


class Answer:
    """One answer, whoever gives it: iterate over its words as they come."""

    def __init__(self, prompt: str | list[int], max_tokens: int, servers: Sequence[str]) -> None:
        self.prompt, self.max_tokens, self.servers = prompt, max_tokens, servers
        self.tokens: list[int] = []
        self.given_by: list[str] = []

    def __iter__(self) -> Iterator[str]:
        for url in self.servers:
            self.given_by.append(url)
            try:
                yield from self._ask(url)
                return
            except (LostError, OSError, http.client.HTTPException) as error:
                print(f"[{url} is lost after {len(self.tokens)} tokens: {error}]", file=sys.stderr)
        raise LostError("no server is left")

    def _ask(self, url: str) -> Iterator[str]:
        """The rest of the answer: the prompt is what was asked and what has been answered."""
        prompt = [*self.prompt, *self.tokens] if isinstance(self.prompt, list) else self.prompt
        body = {"prompt": prompt, "max_tokens": self.max_tokens - len(self.tokens), "temperature": 0}
        body |= {"stream": True, "return_token_ids": True, "ignore_eos": True}
        asked = urllib.request.Request(
            f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(asked, timeout=300) as reply:
            for line in reply:
                if not line.startswith(b"data: {"):
                    continue
                said: dict[str, Any] = json.loads(line[6:])
                if "choices" not in said:
                    raise LostError(said.get("error", said))
                (choice,) = said["choices"]
                self.prompt = choice.get("prompt_token_ids") or self.prompt if not self.tokens else self.prompt
                self.tokens += choice["token_ids"] or []
                yield choice["text"]
                if choice["finish_reason"]:
                    return
        raise LostError("it stopped in the middle of a stream")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prompt")
    parser.add_argument("servers", nargs="+", metavar="URL")
    parser.add_argument("--max-tokens", type=int, default=400)
    args = parser.parse_args()
    answer = Answer(args.prompt, args.max_tokens, args.servers)
    for words in answer:
        print(words, end="", flush=True)
    print(f"\n[{len(answer.tokens)} tokens, given by {' and '.join(answer.given_by)}]", file=sys.stderr)
