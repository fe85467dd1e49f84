"""Reuse of KV that was computed elsewhere than behind this prefix, as CacheBlend does it (EuroSys 2025). Pure; numpy.

The pool gives chunks by their content (`kvclient.engines.core.content_keys`). `rotation` turns their K to the place
that they have in a prompt; `choice` says which tokens to compute again. The computing itself is the engine's.
"""
