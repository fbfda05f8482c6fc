"""A serializer for EventMQ: ``json-zlib``."""
