"""An SGLang engine on the CPU as a process of its own: one JSON object a line in, one a line out.

python -m tests.engines.sglang_process '{"model_path": ..., ...}'
"""

from __future__ import annotations

import json
import sys
from typing import Any

FLUSH_S = 60.0


def generate(engine: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """`{"ids": [...], "tokens": n}` -> ids of the tokens that follow, and where the prompt's came from."""
    sampling = {"temperature": 0, "max_new_tokens": asked["tokens"], "ignore_eos": True}
    got = engine.generate(input_ids=asked["ids"], sampling_params=sampling)
    told = got["meta_info"]
    return {
        "ids": got["output_ids"],
        "cached": told.get("cached_tokens"),
        "details": told.get("cached_tokens_details") or {},
    }


def flush(engine: Any) -> bool:
    """Whether the engine has forgotten all KV, as soon as nothing runs and nothing is written behind."""
    return bool(engine.loop.run_until_complete(engine.tokenizer_manager.flush_cache(timeout_s=FLUSH_S)).success)


def update(engine: Any, asked: dict[str, Any]) -> bool:
    """`{"weights": path, "flushes": bool, "version": text or null}` -> whether SGLang has these weights now."""
    from sglang.srt.managers.io_struct import UpdateWeightFromDiskReqInput

    if asked["flushes"]:
        flush(engine)  # so that nothing is written behind any more: SGLang's update does not wait for that
    wanted = UpdateWeightFromDiskReqInput(
        model_path=asked["weights"], flush_cache=asked["flushes"], weight_version=asked["version"]
    )
    done, *_ = engine.loop.run_until_complete(engine.tokenizer_manager.update_weights_from_disk(wanted, None))
    return bool(done)


def main() -> None:
    """Answers until its input ends."""
    import sglang

    answers = sys.stdout
    sys.stdout = sys.stderr
    engine = sglang.Engine(**json.loads(sys.argv[1]))
    print(json.dumps({"up": True}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if "flush" in asked:
            answer: dict[str, Any] = {"flushed": flush(engine)}
        elif "weights" in asked:
            answer = {"updated": update(engine, asked)}
        else:
            answer = generate(engine, asked)
        print(json.dumps(answer), file=answers, flush=True)
    engine.shutdown()


if __name__ == "__main__":
    main()
