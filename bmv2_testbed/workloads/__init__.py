"""Real request traces, turned into fetches that nodes really make."""
