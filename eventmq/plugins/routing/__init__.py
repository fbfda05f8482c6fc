"""Built-in routing strategies and queue orders: who gets which jobs next."""
