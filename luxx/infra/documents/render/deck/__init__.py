"""Writes decks as pptx files: their master, layouts and shapes."""
