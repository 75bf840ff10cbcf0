"""Chaos: real processes on real databases are killed, frozen and cut off; then the tests check the
stored data.
"""
