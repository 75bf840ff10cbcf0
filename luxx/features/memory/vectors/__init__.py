"""Vectors of texts: their tables, searching them, writing them in the background, and the test of a model."""
