"""`kvcast init`: what this machine has, and configuration files made of it."""
