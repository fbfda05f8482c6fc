"""Gateways: servers of other protocols, ordinary clients and workers towards the broker."""
