"""vLLM on the pool: `KvcastConnector` for `--kv-transfer-config`, see docs/how-to/vllm.md."""
