"""A result backend for EventMQ: results on a web server."""
