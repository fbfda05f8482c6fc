"""Majordomo draft 0.1: messages, the broker's part as a state machine, and what runs it."""
