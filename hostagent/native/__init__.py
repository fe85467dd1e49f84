"""The data path in C: cast segments between sockets and the pool, and answers to reads, without the interpreter. Built
when first used.

`library` builds it and makes it callable; `native_*` of `hostagent.transport` use it. Python
decides what follows from arrivals, and gets many of them at once. Without a C compiler the transports do the
same work with numpy (`hostagent.transport.casts`), at several times the cost.
"""
