"""eMQP on the wire: pure encoding and decoding, and one thin socket file.

`commands` are the messages, `features` the csv frame that INFORM and ACK end with, `bulk` the
bodies that carry many jobs or outcomes, `results` how an outcome's value or error is written.
Only `socket` knows ZeroMQ.
"""
