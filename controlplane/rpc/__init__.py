"""The gRPC services, as thin shells over the core."""
