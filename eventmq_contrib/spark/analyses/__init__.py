"""Analyses: pure functions from events to a DataFrame or a record; they read and write nothing."""
