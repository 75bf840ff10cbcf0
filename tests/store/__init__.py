"""The database: group commit, durability, migrations, one server per directory, and all of it on PostgreSQL."""
