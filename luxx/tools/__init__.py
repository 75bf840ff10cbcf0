"""Tools: what they are, how one is written, and the one way every call of them goes."""
