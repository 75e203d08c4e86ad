"""Tool servers: a client of the Model Context Protocol, in both of its eras.

wing, routes   how it plugs in            part       the servers of one workspace
server         one server: starting, its lists, calls, starting again
client_servers those that clients name while they are connected
session        what is said over a connection: initialize or discover, lists, requests
links          what a connection is, and the one to a program over its pipes
web, sse       the connections over HTTP: streamable HTTP, and the transport of 2024
items          what a server lists        tools      tools for the agent
naming         names that every provider takes       schemas    schemas that every provider takes
content        what a call gave           errors     what goes wrong
places         how many servers start at a time
"""
