"""HTTP/1.1 for a local daemon: a server, a client, and Server-Sent Events, over asyncio and h11.

Usable on its own: of the package it imports only `clock` and `records`. Names are imported from
the modules, so that a program that is only a client does not load the server. Start reading at
`messages` (the values), then `connection` (the life of a connection on the server's side).
"""
