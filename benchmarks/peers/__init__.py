"""Receive-offload engines of others, measured in turn with ours on the same packets.

Each engine is a process that answers requests on its standard input, one a line: the file of a
batch, a mode and a time in seconds, separated by tabs. The answer is a line of JSON: ``ns``, the
nanoseconds a packet of this measurement, ``out``, how many packets came out, and ``payload``, the
TCP payload in them; or ``error``. At the end of its input the process ends.
"""
