"""Built-in routing strategies and queue orders: which worker gets which jobs next."""
