"""The server and the users of the tests of the API."""

from api.conftest import admin, anna, bob, document, server, upstream

__all__ = ["admin", "anna", "bob", "document", "server", "upstream"]
