"""Artifacts: documents, decks, sheets, pages, programs and diagrams with versions, as texts."""
