"""How the KV of a prompt gets from the engine that computes it to those that decode: over kvcast, and over NIXL.

NIXL is beside because it is what vLLM's own connector for this uses. It reads an engine's memory over TCP here.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Protocol

from bmv2_testbed.client import Testbed
from bmv2_testbed.configs import DATA_INTERFACE
from bmv2_testbed.demo.vllm import ALONE, CHUNK_TOKENS, SETTINGS, answers_at_once, one_answer
from bmv2_testbed.engines.engine_client import Engine, Generated, engine_arguments
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.spec import data_ip, host_name

PREFILL: Final = {"do_remote_decode": True}
DECODE: Final = {"do_remote_prefill": True}
"""What a proxy sends that asks both sides at once."""
KNOWN_S: Final = 60.0
POLL_S: Final = 0.05
BATCHED_TOKENS: Final = 1024


def nixl_refusal() -> str | None:
    """Why NIXL's connector cannot be beside; None when it can."""
    if importlib.util.find_spec("nixl") is None:
        return "NIXL is not in this environment: tools/setup_vllm.sh installs it"
    return None


class PrefillSystem(Protocol):
    """One way. Engine 0 computes, on host 0; each other decodes, on a host of its own."""

    name: str

    def arguments(self, model: Path, host: int) -> dict[str, Any]:
        """vLLM's."""
        ...

    def environment(self, host: int) -> Mapping[str, str]:
        """What the engine's process finds in its environment."""
        ...

    def network(self, host: int) -> str | None:
        """Path of the network namespace that the engine's process sees; None: ours."""
        ...

    def warm_up(self, engines: Sequence[Engine], prompt: list[int]) -> None:
        """Whatever happens once in an engine's life."""
        ...

    def answers(self, engines: Sequence[Engine], prompt: list[int], tokens: int) -> tuple[float, list[Generated]]:
        """(when engine 0 was asked on the monotonic clock, `tokens` of answer of each other). Raises TestbedError."""
        ...


class OverKvcast:
    """The decoders wait for keys that do not exist yet, and get each chunk while the next is computed."""

    name = "kvcast"

    def __init__(self, testbed: Testbed) -> None:
        self._testbed = testbed

    def arguments(self, model: Path, host: int) -> dict[str, Any]:
        """See PrefillSystem."""
        return engine_arguments(
            model,
            str(self._testbed.directory / f"{host_name(host)}.sock"),
            chunk_tokens=CHUNK_TOKENS,
            settings=SETTINGS,
            connector={"kv_role": "kv_consumer" if host else "kv_producer"},
            enable_prefix_caching=False,
            max_num_batched_tokens=BATCHED_TOKENS,
        )

    def environment(self, host: int) -> Mapping[str, str]:
        """See PrefillSystem."""
        return {}

    def network(self, host: int) -> str | None:
        """See PrefillSystem: an engine's only way to the network is its agent."""
        return None

    def warm_up(self, engines: Sequence[Engine], prompt: list[int]) -> None:
        """See PrefillSystem."""
        for engine in engines:
            one_answer(engine.generate([prompt], max_tokens=2, kv_transfer_params=ALONE))

    def answers(self, engines: Sequence[Engine], prompt: list[int], tokens: int) -> tuple[float, list[Generated]]:
        """See PrefillSystem."""
        producer, *decoders = engines
        with ThreadPoolExecutor(1) as thread:
            decoding = thread.submit(
                answers_at_once, decoders, [prompt] * len(decoders), tokens, kv_transfer_params=DECODE
            )
            self._await_decoders(len(decoders))
            asked_s = time.monotonic()
            one_answer(producer.generate([prompt], max_tokens=1, kv_transfer_params=PREFILL))
            return asked_s, decoding.result()

    def _await_decoders(self, count: int) -> None:
        """Return when all decoders wait for the prompt: what follows is the network's time, not the engines'."""
        give_up_s = time.monotonic() + KNOWN_S
        while sum(self._waiting_fetches(1 + host) for host in range(count)) < count:
            if time.monotonic() > give_up_s:
                raise TestbedError(f"not all of {count} decoders wait for their prompt after {KNOWN_S:.0f} s")
            time.sleep(POLL_S)

    def _waiting_fetches(self, host: int) -> int:
        lines = self._testbed.agent_metrics(host).splitlines()
        return sum(
            int(float(line.rpartition(" ")[2])) for line in lines if line.startswith("kvcast_agent_waiting_fetches ")
        )


class OverNixl:
    """The prompt is computed; then each decoder reads the blocks that the answer names, as behind vLLM's proxies.

    A proxy asks the engine that computes once for each decoder: blocks are given back when they were read once. The
    engine's own prefix cache spares it the work.
    """

    name = "NIXL"

    def __init__(self, testbed: Testbed) -> None:
        self._testbed = testbed

    def arguments(self, model: Path, host: int) -> dict[str, Any]:
        """See PrefillSystem."""
        transfer = {
            "kv_connector": "YieldingNixlConnector",
            "kv_connector_module_path": "bmv2_testbed.engines.yielding_nixl",
            "kv_role": "kv_consumer" if host else "kv_producer",
            "kv_buffer_device": "cpu",
        }
        return engine_arguments(
            model,
            None,
            kv_transfer_config=transfer,
            enable_prefix_caching=host == 0,
            max_num_batched_tokens=BATCHED_TOKENS,
        )

    def environment(self, host: int) -> Mapping[str, str]:
        """See PrefillSystem. The hosts share a machine, but their links are what is compared: TCP, no shared memory."""
        return {"VLLM_NIXL_SIDE_CHANNEL_HOST": data_ip(host), "UCX_TLS": "tcp", "UCX_NET_DEVICES": DATA_INTERFACE}

    def network(self, host: int) -> str | None:
        """See PrefillSystem."""
        return self._testbed.network_of(host)

    def warm_up(self, engines: Sequence[Engine], prompt: list[int]) -> None:
        """See PrefillSystem. Decoders connect at their first read."""
        self.answers(engines, prompt, 2)

    def answers(self, engines: Sequence[Engine], prompt: list[int], tokens: int) -> tuple[float, list[Generated]]:
        """See PrefillSystem."""
        producer, *decoders = engines
        asked_s = time.monotonic()
        prefills = producer.generate([prompt] * len(decoders), max_tokens=1, kv_transfer_params=PREFILL)
        with ThreadPoolExecutor(len(decoders)) as threads:
            decoding = [
                threads.submit(
                    decoder.generate,
                    [prompt],
                    max_tokens=tokens,
                    kv_transfer_params=_transfer_params(one_answer([prefill])),
                )
                for decoder, prefill in zip(decoders, prefills, strict=True)
            ]
            answers = [one_answer(future.result()) for future in decoding]
        if not producer.ask("run_until_idle"):
            raise TestbedError("the engine that computes does not get its blocks back")
        return asked_s, answers


def _transfer_params(prefill: Generated) -> Mapping[str, Any]:
    """What the engine that computed has for those that decode."""
    if prefill.kv_transfer_params is None:
        raise TestbedError("the engine that computes says nothing of where the KV is")
    return prefill.kv_transfer_params
