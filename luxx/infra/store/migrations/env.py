"""How Alembic runs here: on the connection that `store/migrate.py` hands over, inside its transaction."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=context.config.attributes.get("metadata"),
    render_as_batch=True,
    transactional_ddl=True,
)
context.run_migrations()
