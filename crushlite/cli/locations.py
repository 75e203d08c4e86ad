"""Where the files of a directory are, as a daemon would find them for us."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..hosting.plain import own_data_dir
from ..wings import has_wing
from .common import say_nothing, wanted

if TYPE_CHECKING:
    import argparse

    from ..config import ConfigFiles


def config_files(options: argparse.Namespace) -> ConfigFiles:
    """Only where the wing `config` is there."""
    from ..config import ConfigFiles, Roots

    workspace, data_dir = _named(options)
    return ConfigFiles.find(workspace, os.environ, Roots(), data_dir=data_dir)


def data_directory(options: argparse.Namespace) -> Path:
    """The data directory of this workspace. Raises ConfigError if a file that names it is bad."""
    if has_wing("config"):
        return config_files(options).data_dir
    workspace, data_dir = _named(options)
    return data_dir or own_data_dir(workspace)


def _named(options: argparse.Namespace) -> tuple[Path, Path | None]:
    workspace = Path(os.path.realpath(wanted(options, say_nothing).directory))
    data_dir = os.environ.get("CRUSHLITE_DATA_DIR", "")
    return workspace, Path(data_dir) if data_dir else None
