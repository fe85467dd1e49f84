"""Wire formats: layouts generated from the P4 headers, and the codecs over them."""
