"""Tools for the files of the SQLite store: check, repair, back up and salvage."""
