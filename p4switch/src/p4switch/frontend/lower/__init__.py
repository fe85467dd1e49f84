"""From the checked syntax tree to the IR: instances elaborated, generics specialised, calls inlined, names resolved."""
