"""Commands of ``manage.py``, one per module."""
