"""The C back end: IR to C source to a shared object."""
