"""Messages of P4Runtime, built in a descriptor pool of their own from the descriptors that PyPI's `p4runtime` carries.

A process may hold other copies of the same protocol, of other versions: finsy brings one. In protobuf's default pool
two copies of one .proto file are an error unless they are byte for byte the same; in a private pool they never meet.
For a type checker their names are `Any`, unless it finds stubs made from the same descriptors first on its path:
`make lint` writes them with p4switch/tools/generate_p4runtime_stubs.py.
"""
