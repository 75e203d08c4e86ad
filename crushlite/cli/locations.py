"""Where the configuration and the data of a directory are: found as a daemon finds them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..hosting.plain import own_data_dir
from ..wings import has_wing
from .common import say_nothing, wanted

if TYPE_CHECKING:
    import argparse

    from ..config.loading import ConfigFiles

DATABASE = "crushlite.db"  # in a data directory


def config_files(options: argparse.Namespace) -> ConfigFiles:
    """The configuration files of the current directory. Only for callers that know that the wing
    `config` is there."""
    from ..config.files import Roots
    from ..config.loading import ConfigFiles
    from ..config.script import ScriptRuns

    workspace, data_dir = _places(options)
    # Kept with the options: a command that reads the files twice runs a crushrc once.
    options.scripts = getattr(options, "scripts", None) or ScriptRuns()
    scripts = options.scripts
    return ConfigFiles.find(workspace, os.environ, Roots(), data_dir=data_dir, scripts=scripts)


def data_directory(options: argparse.Namespace) -> Path:
    """The data directory of the current directory. Raises ConfigError if a configuration file that
    names it is wrong."""
    if has_wing("config"):
        return config_files(options).data_dir
    workspace, data_dir = _places(options)
    return data_dir or own_data_dir(workspace)


def _places(options: argparse.Namespace) -> tuple[Path, Path | None]:
    """The directory of the workspace, and the data directory that the environment names."""
    workspace = Path(os.path.realpath(wanted(options, say_nothing).directory))
    data_dir = os.environ.get("CRUSHLITE_DATA_DIR", "")
    return workspace, Path(data_dir) if data_dir else None
