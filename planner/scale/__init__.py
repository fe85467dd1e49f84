"""How the cost of managing grows with nodes and chunks, and what splitting into cells would lose."""
