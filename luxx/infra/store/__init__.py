"""The database: engine, transactions, migrations."""
