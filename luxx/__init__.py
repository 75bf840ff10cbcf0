"""Luxx: people and AI agents work together on durable runs.

Nothing is imported here, so that `import luxx` costs nothing; start at `luxx/app/application.py`.
"""

__version__ = "0.1.0"
