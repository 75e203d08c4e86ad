"""The version and the name: packaging and what the daemon says of itself are read here."""

__version__ = "0.1.0"
WIRE_VERSION = f"crushlite-{__version__}"  # as told to clients: theirs may be that of a Crush
# Names sockets and directories: a tool that vendors this package has its own, and meets neither an
# installed crushlite nor another tool in the same project.
NAME = __name__.partition(".")[0]
