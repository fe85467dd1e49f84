"""What a connector of any engine decides: keys, what to fetch, load and save, what to tell routers. Pure."""
