"""`python -m crushlite` is the `crushlite` command."""

import sys

from crushlite.cli import main

sys.exit(main())
