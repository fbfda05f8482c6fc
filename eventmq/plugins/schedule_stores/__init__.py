"""Built-in schedule stores: where schedules are kept, one plugin per module."""
