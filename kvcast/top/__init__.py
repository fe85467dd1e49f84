"""What `kvcast top` is made of: what it knows, how it shows that, where it hears it, which keys it takes."""
