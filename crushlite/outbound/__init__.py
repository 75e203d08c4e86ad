"""Connections from the daemon to servers on the network, for wings: TLS, proxies, addresses.

endpoint     a base URL, taken apart, and the way to its server
connecting   a server, reached directly or through a proxy
proxies      which proxy the environment names
tunnel       https through a proxy
"""
