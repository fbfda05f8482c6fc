"""One module per library: its app, as its workers load it, and `client`, as the measuring does."""
