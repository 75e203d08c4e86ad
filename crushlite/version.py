"""The single source of the version: packaging and what the daemon says of itself are read here."""

__version__ = "0.1.0"
WIRE_VERSION = f"crushlite-{__version__}"  # as told to clients: theirs may be that of a Crush
