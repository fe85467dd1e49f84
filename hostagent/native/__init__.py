"""The data path in C: cast segments between sockets and the pool, and answers to reads, without the interpreter.

It comes built with the package (`datapath.so`, from `src`, by tools/native_build.py). `library` makes it callable;
`native_*` of `hostagent.transport` use it. Python decides what follows from arrivals, and gets many of them at once.
"""
