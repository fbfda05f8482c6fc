"""What gateways of other protocols share: broker connections, worker sessions, ports, options."""
