"""The demo: the incast in all modes, then stretches of traces; a table and a picture in the end."""
