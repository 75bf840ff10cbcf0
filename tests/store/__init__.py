"""The database on SQLite and PostgreSQL: group commit, durability, migrations, locks, search and
whole servers.
"""
