"""The HTTP interface: a route table as data, and one short function per route.

A function here reads a request, calls one thing of the backend and writes the answer. It holds no
rule about runs, claims or permissions: runs.py, claims.py and hosting/ decide on those, and their
refusals are errors that carry a status.
"""
