"""Built-in triggers: when a schedule fires, one plugin per module."""
