"""JSON-RPC 2.0 between two programs that both may ask: ACP, MCP over stdio, language servers.

    peer     one connection: requests, notifications and answers, in both directions
    frames   where a message begins and ends: one per line, or behind Content-Length headers
    values   messages as bytes, and back
    errors   what goes wrong

For wings; the core does not use it. Knows nothing of sessions, runs or processes: a peer works on
any pair of streams, and whoever made the streams ends them.
"""
