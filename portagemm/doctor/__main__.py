"""``python -m portagemm.doctor``: the doctor without the command line's libraries."""

from __future__ import annotations

import sys

from portagemm.doctor.main import main

sys.exit(main(sys.argv[1:]))
