"""The umbrella command line `kvcast`. Owns nothing but the way to the parts; imported by nobody."""
