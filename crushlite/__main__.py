"""`python -m crushlite` is the `crushlite` command."""

import sys

from .cli import main

sys.exit(main())
