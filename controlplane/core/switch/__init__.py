"""The switch as the core sees it: the entries that it should have, those that it has, and the way between them."""
