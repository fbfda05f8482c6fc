"""EMP 1: messages, one connection as a state machine, and what runs it."""
