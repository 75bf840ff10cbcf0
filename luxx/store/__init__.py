"""The database: tables' ground, one engine for SQLite and PostgreSQL, migrations, backup."""
