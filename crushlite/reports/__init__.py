"""The daemon described to programs: its routes as OpenAPI, its state as metrics. A wing."""
