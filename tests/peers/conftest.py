"""Leaves the tests here out where the peers are not installed: see README.md."""

from __future__ import annotations

import sys

from tests.support.peers import GOPLS, PEERS

collect_ignore_glob = [] if PEERS.as_posix() in sys.prefix else ["test_*.py"]
if not GOPLS.exists():
    collect_ignore_glob.append("test_gopls.py")
