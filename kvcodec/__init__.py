"""KV in fewer bytes: forms that a chunk's bytes can be stored in, and the codecs between them.

`forms` names them, `codec` turns a chunk into one and back. `native` builds and loads the loops in C; without a C
compiler `reference` does the same in numpy and gives the same bytes. Knows nothing of agents, stores and engines, so
that whatever carries chunks can use it.
"""
