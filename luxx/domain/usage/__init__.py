"""Tokens and money: what was used, what is reserved, limits by day."""
