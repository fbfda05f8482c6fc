"""Built-in result backends: where the bytes of results are kept."""
