"""The HTTP interface: a route table as data, and one short function per route.

A function here reads a request, calls one thing of the backend and writes the answer. It holds no
rule about runs, claims or permissions: those are decided where they live, and refusals arrive as
errors that carry their own status.
"""
