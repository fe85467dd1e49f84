"""`kvcast doctor`: what on this machine keeps kvcast from running, or from running fast. One module per topic."""
