"""The JSON of requests, answers and events as dataclasses: one module per noun, and `codec` between
them and JSON.

Pure: no asyncio, no I/O. A field name is the key in JSON unless `wire(name=...)` gives another;
`omitted()` leaves an empty value out, as the base protocol does.
"""
