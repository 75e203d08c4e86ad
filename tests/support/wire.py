"""The classes of the wire: those of the protocol, and those that only wings have."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil

import crushlite.protocol

OF_WINGS = ("console.wire", "features.wire", "lsp.wire", "mcp.wire", "skills.wire")


def wire_class(name: str) -> type:
    """`runs.RunInfo` of the protocol, or `lsp.wire.StartLSP` of a wing."""
    module, _, attribute = name.rpartition(".")
    package = "crushlite" if module in OF_WINGS else "crushlite.protocol"
    found: type = getattr(importlib.import_module(f"{package}.{module}"), attribute)
    return found


def wire_classes() -> set[type]:
    """Every dataclass that a module of the wire defines."""
    modules = [info.name for info in pkgutil.iter_modules(crushlite.protocol.__path__, "protocol.")]
    return {
        value
        for name in (*modules, *OF_WINGS)
        for value in vars(importlib.import_module(f"crushlite.{name}")).values()
        if isinstance(value, type)
        and dataclasses.is_dataclass(value)
        and value.__module__ == f"crushlite.{name}"
    }
