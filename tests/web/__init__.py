"""The web as tools see it: attacks on the transport, pages made readable, searches."""
