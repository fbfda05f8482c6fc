"""Built-in serializers: how arguments and results become bytes."""
