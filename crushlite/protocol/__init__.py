"""The wire as dataclasses: one module per noun, and `codec` between them and JSON.

Pure: no asyncio, no I/O. A field name here is the key on the wire unless `wire(name=...)` says
otherwise; `omitted()` leaves an empty value out, as the base protocol does.
"""
