"""Chaos: real processes on real databases are killed, frozen and cut off, then the truth is looked for."""
