"""The server, the users and the scripted model of the tests of the API."""

from api.conftest import admin, document, server, upstream

__all__ = ["admin", "document", "server", "upstream"]
