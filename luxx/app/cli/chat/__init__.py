"""`luxx chat`, the terminal client; it knows only the HTTP API."""
