"""`luxx room` and `luxx task`: runs with several turns at the terminal; it knows only the HTTP API."""
