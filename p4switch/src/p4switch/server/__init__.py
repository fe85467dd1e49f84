"""The P4Runtime server: pure translation and arbitration, and a thin gRPC shell around them."""
