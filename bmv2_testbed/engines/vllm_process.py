"""A vLLM engine as a process that takes requests through a UNIX socket: one JSON object a line, each way.

    python -m bmv2_testbed.engines.vllm_process --socket PATH --engine '{"model": ..., ...}'

`--engine` holds vLLM's own engine arguments. Scheduler, worker and this loop share one process, so that a test decides
step by step; production uses `vllm serve`.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    # An engine of one process has no peers, and a testbed's host has no name that could be looked up.
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
}


YIELD_S = 0.001
"""As vLLM's `EngineCoreProc._process_engine_step` sleeps after a step that computed nothing."""
TONE_RATE = 16000
"""Samples a second of the tones that requests may name instead of sounds."""


def _yield_when_idle(core: Any) -> None:
    """Have an engine of one process leave the machine to others after a step that computed nothing, as while all
    requests wait for KV: vLLM's loop for an engine process does, and the one here is another."""
    post_step = core.post_step

    def post_step_and_yield(model_executed: bool) -> None:
        post_step(model_executed)
        if not model_executed and core.scheduler.has_requests():
            time.sleep(YIELD_S)

    core.post_step = post_step_and_yield


class EngineProcess:
    """Requests in, tokens out."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        from vllm.config import KVEventsConfig, KVTransferConfig
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        made = dict(arguments)
        if "kv_transfer_config" in made:
            made["kv_transfer_config"] = KVTransferConfig(**made["kv_transfer_config"])
        if "kv_events_config" in made:
            made["kv_events_config"] = KVEventsConfig(**made["kv_events_config"])
        self._engine = LLMEngine.from_engine_args(EngineArgs(**made))
        _yield_when_idle(self._engine.engine_core.engine_core)

    def close(self) -> None:
        """End the engine's parts."""
        self._engine.engine_core.shutdown()

    def handle(self, request: dict[str, Any]) -> object:
        """One request of the client."""
        return getattr(self, f"do_{request.pop('do')}")(**request)

    def do_generate(
        self, requests: list[dict[str, Any]], abort: dict[str, int] | None = None, hold: tuple[int, str] | None = None
    ) -> object:
        """Run requests together; `abort`: request -> after how many steps it is aborted; `hold`: after so many steps
        the engine stands still until there is a file of this name."""
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest

        started: dict[str, float] = {}
        results: dict[str, dict[str, Any]] = {}
        for request in requests:
            extra = {"kv_transfer_params": request["kv_transfer_params"]} if request.get("kv_transfer_params") else None
            parameters = SamplingParams(
                max_tokens=request.get("max_tokens", 8),
                temperature=0.0,
                ignore_eos=True,
                extra_args=extra,
                logprobs=request.get("scores", 2 if request.get("margins") else None),
            )
            prompt: dict[str, Any] = {"prompt_token_ids": request["tokens"]}
            if request.get("salt"):
                prompt["cache_salt"] = request["salt"]
            if request.get("tones"):
                prompt["multi_modal_data"] = {"audio": [_tone(hertz) for hertz in request["tones"]]}
            if request.get("tone_names"):
                prompt["multi_modal_uuids"] = {"audio": request["tone_names"]}
            started[request["id"]] = time.monotonic()
            adapter = request.get("adapter")
            self._engine.add_request(
                request["id"], prompt, parameters, lora_request=LoRARequest(*adapter) if adapter else None
            )
        steps = 0
        waiting = dict(abort or {})
        while self._engine.has_unfinished_requests():
            outputs = self._engine.step()
            steps += 1
            for output in outputs:
                self._take(output, started, results)
            while hold is not None and steps == hold[0] and not os.path.exists(hold[1]):
                time.sleep(YIELD_S)
            for name in [name for name, after in waiting.items() if steps >= after]:
                del waiting[name]
                self._engine.abort_request([name])
        return results

    @staticmethod
    def _take(output: Any, started: dict[str, float], results: dict[str, dict[str, Any]]) -> None:
        result = results.setdefault(output.request_id, {})
        completion = output.outputs[0]
        if completion.token_ids and "first_token_s" not in result:
            result["first_token_at_s"] = time.monotonic()
            result["first_token_s"] = result["first_token_at_s"] - started[output.request_id]
        if output.finished:
            result["tokens"] = list(completion.token_ids)
            result["margins"] = [_margin(each) for each in completion.logprobs or ()]
            result["scores"] = [
                {token: one.logprob for token, one in each.items()} for each in completion.logprobs or ()
            ]
            result["cached_tokens"] = output.num_cached_tokens
            result["kv_transfer_params"] = output.kv_transfer_params
            result["finish_reason"] = completion.finish_reason
            result["total_s"] = time.monotonic() - started[output.request_id]

    def do_run_until_idle(self, timeout_s: float = 600.0) -> object:
        """Step on until the engine has nothing left to do, saves included; False when it goes on past the timeout."""
        core = self._engine.engine_core.engine_core
        give_up_s = time.monotonic() + timeout_s
        while core.scheduler.has_requests():
            self._engine.step()
            if time.monotonic() > give_up_s:
                return False
        return True

    def do_metrics(self) -> object:
        """kvcast's metrics: name -> {labels -> value}; of histograms the sum and the count."""
        found: dict[str, dict[str, float]] = {}
        for metric in self._engine.get_metrics():
            if "kvcast" not in metric.name:
                continue
            labels = ",".join(v for k, v in sorted(metric.labels.items()) if k not in ("engine", "model_name"))
            name = metric.name.removeprefix("vllm:kvcast_")
            if hasattr(metric, "value"):
                found.setdefault(name, {})[labels] = metric.value
            else:
                found.setdefault(name, {}).update(sum=metric.sum, count=metric.count)
        return found

    def do_preemptions(self) -> object:
        """How often a request was preempted."""
        return sum(metric.value for metric in self._engine.get_metrics() if metric.name == "vllm:num_preemptions")

    def do_reset(self, connector: bool = False) -> object:
        """Forget the engine's own prefix cache; with `connector`, also what kvcast knows."""
        return self._engine.reset_prefix_cache(reset_connector=connector)

    def do_change_weights(self, factor: float, loaded: bool) -> object:
        """Multiply a parameter that all KV depends on, in place; `loaded`: by vLLM's own call, else behind its back."""

        def change(worker: Any) -> None:
            model = worker.get_model()
            name, parameter = next(each for each in model.named_parameters() if "input_layernorm" in each[0])
            if loaded:
                model.load_weights([(name, parameter.detach() * factor)])
            else:
                parameter.detach().mul_(factor)

        self._engine.collective_rpc(change)
        return None

    def do_embed(self, prompts: list[list[int]], salt: str | None = None) -> object:
        """Embeddings of prompts, one after the other."""
        from vllm import PoolingParams

        found = []
        for number, tokens in enumerate(prompts):
            prompt: dict[str, Any] = {"prompt_token_ids": tokens} | ({"cache_salt": salt} if salt else {})
            self._engine.add_request(f"e{number}", prompt, PoolingParams(task="embed"))
            while self._engine.has_unfinished_requests():
                found += [output.outputs.data.tolist() for output in self._engine.step() if output.finished]
            self.do_run_until_idle()
        return found

    def do_take_cache(self, away: bool) -> object:
        """Call the hooks of vLLM 0.33 for a cache whose memory goes away and comes back, as its worker does."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        connector = get_kv_transfer_group()
        return connector.unregister_kv_caches() if away else connector.restore_kv_caches()

    def do_where(self, tokens: list[int]) -> object:
        """[key, where it is] of each full chunk of a prompt at each worker, as this engine's agent knows it now."""
        from kvclient.client import AgentUnavailableError

        connector = self._engine.engine_core.engine_core.scheduler.connector
        try:
            found = connector.where(tokens)
        except AgentUnavailableError:
            # Workers say what their caches are with the first step, and this engine may not have made one yet.
            self._step_once()
            found = connector.where(tokens)
        return [[key.hex(), where.name] for key, where in found]

    def _step_once(self) -> None:
        """Answer a request of one token, of which nothing is shared."""
        from vllm import SamplingParams

        apart = {"kv_transfer_params": {"kvcast.no_load": True, "kvcast.no_save": True}}
        parameters = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True, extra_args=apart)
        self._engine.add_request("introduction", {"prompt_token_ids": [5]}, parameters)
        while self._engine.has_unfinished_requests():
            self._engine.step()

    def do_groups(self) -> object:
        """Groups of layers with block tables of their own."""
        return len(self._engine.engine_core.engine_core.scheduler.kv_cache_config.kv_cache_groups)

    def do_blocks(self) -> object:
        """Blocks of the paged cache that requests use; one is vLLM's own null block."""
        pool = self._engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
        return {"used": pool.num_gpu_blocks - pool.get_num_free_blocks() - 1, "all": pool.num_gpu_blocks}


def _tone(hertz: float) -> tuple[Any, int]:
    """(two seconds of a sound, samples a second), as vLLM takes it."""
    import numpy as np

    return np.sin(2 * np.pi * hertz / TONE_RATE * np.arange(2 * TONE_RATE), dtype=np.float32), TONE_RATE


def _margin(logprobs: Any) -> float:
    """By how much the likeliest token leads the next one, in log probability."""
    best, second = sorted((each.logprob for each in logprobs.values()), reverse=True)[:2]
    return float(best - second)


def serve(path: str, engine: EngineProcess) -> None:
    """Answer one client after the other until one says `stop`."""
    with socket.socket(socket.AF_UNIX) as listener:
        partial = f"{path}.{os.getpid()}"
        listener.bind(partial)
        listener.listen(1)
        # Appears under its name only now: who sees it can connect.
        os.rename(partial, path)
        while True:
            connection, _ = listener.accept()
            with connection, connection.makefile("rwb") as stream:
                for line in stream:
                    request = json.loads(line)
                    if request["do"] == "stop":
                        stream.write(b"{}\n")
                        return
                    try:
                        answer = {"result": engine.handle(request)}
                    except Exception as error:  # noqa: BLE001 - reported to the caller
                        traceback.print_exc()
                        answer = {"error": f"{type(error).__name__}: {error}"}
                    stream.write(json.dumps(answer).encode() + b"\n")
                    stream.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Run an engine until it is asked to stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--engine", required=True, type=json.loads, help="vLLM's engine arguments, as JSON")
    args = parser.parse_args(argv)
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    engine = EngineProcess(args.engine)
    try:
        serve(args.socket, engine)
    finally:
        engine.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
