"""Faces: Litestar controllers that parse, call a service and shape the answer. No SQL, no decisions."""
