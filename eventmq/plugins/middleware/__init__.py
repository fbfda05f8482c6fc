"""Built-in middleware: code around submission and execution."""
