"""What NVIDIA Dynamo's router is told of the pool."""
