"""The database: group commit, durability, migrations, one server per directory; on PostgreSQL as well."""
