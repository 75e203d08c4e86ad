"""Every route of a daemon with all wings."""

from __future__ import annotations

from crushlite.api.routes import whole_table
from crushlite.wings import standard_wings

TABLE = whole_table(standard_wings())
