"""Gateways: servers of other protocols in front of a broker."""
