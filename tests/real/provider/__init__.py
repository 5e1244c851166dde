"""A local stand-in for the providers: their own wire formats at a known schedule."""
