"""The web tools: attacks on the transport, pages converted to text, searches, and the egress proxy."""
