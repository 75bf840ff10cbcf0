"""Knowledge bases: documents that agents search."""
