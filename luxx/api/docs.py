"""stub"""
from litestar import Controller, get
from luxx.api.guards import PUBLIC
class DocsController(Controller):
    path = "/"
