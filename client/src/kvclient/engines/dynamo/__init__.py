"""News of the pool for NVIDIA Dynamo's router."""
