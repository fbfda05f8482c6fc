"""A package to pytest, so that the processes of its fixtures end with its last test."""
