"""KV in fewer bytes: forms that a chunk's bytes can be stored in, and the codecs between them.

`forms` names them, `codec` turns a chunk into one and back; `native` has the loops in C. Knows nothing of agents,
stores and engines, so that whatever carries chunks can use it.
"""
