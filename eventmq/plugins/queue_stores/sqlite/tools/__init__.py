"""Looks after the files of the SQLite store: checks them, repairs what is safe, copies them."""
