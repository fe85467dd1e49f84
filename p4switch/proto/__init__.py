"""Messages of P4Runtime 1.5 (a superset of 1.4), built in a descriptor pool of their own.

The process may hold other copies of the same protocol, of other versions: finsy brings one,
PyPI's `p4runtime` another (generated for protobuf < 3.21). In protobuf's default pool two copies
of `p4/v1/p4runtime.proto` are an error unless they are byte for byte the same; in a private pool
they never meet. `p4runtime.binpb` is the compiled descriptor set of the .proto files beside it
(`make -C p4switch/proto` makes it again, with the type stubs).
"""
