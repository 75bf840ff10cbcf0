"""Export and import of conversations."""
