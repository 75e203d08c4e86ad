"""What the tester's own environment holds decides no test: a key for some model, or a proxy, would
be used by every daemon in this process, and a setting of a daemon by every daemon there is."""

from __future__ import annotations

import os

from tests.support.loop import use_quick_loops

for _name in list(os.environ):
    if _name.upper().endswith(("_API_KEY", "_PROXY")) or _name.startswith(("CRUSHLITE_", "GIT_")):
        del os.environ[_name]

use_quick_loops()
