"""One module per library: the app for its workers, and `client` for the measurement."""
