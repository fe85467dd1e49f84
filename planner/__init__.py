"""What a pool would do for a trace."""
