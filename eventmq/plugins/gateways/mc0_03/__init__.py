"""mc0 0.3: messages, the middleware as a state machine, and the bridge to topics."""
