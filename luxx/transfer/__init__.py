"""Conversations that leave and arrive: exports, and imports of our own and of others' files."""
