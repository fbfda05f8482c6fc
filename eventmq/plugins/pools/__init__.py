"""Worker pools: jobs run in child processes, in threads, or in an event loop."""
