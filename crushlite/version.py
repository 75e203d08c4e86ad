"""The single source of the version: packaging and `GET /v1/version` both read it here."""

__all__ = ["__version__"]

__version__ = "0.1.0"
