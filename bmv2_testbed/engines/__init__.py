"""Real inference engines for demonstrations and tests: small random models, an engine process, its client."""
