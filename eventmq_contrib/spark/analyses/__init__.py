"""The tables: pure functions, events in, a DataFrame or a record out, nothing read or written."""
