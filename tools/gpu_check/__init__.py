"""`make gpu-check`: kvcast's copies on a GPU, with torch, Triton and transformers alone: no vLLM, no network."""
