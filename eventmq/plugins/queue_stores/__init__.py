"""Built-in queue stores: SQLite in a data directory, and the same tables in memory."""
