"""``python -m portagemm.doctor``: the doctor without the command line's libraries."""

from __future__ import annotations

import sys

if sys.version_info < (3, 10):  # noqa: UP036 (where this is true nothing else of the package can be imported)
    found = ".".join(map(str, sys.version_info[:3]))
    sys.stderr.write(f"portagemm doctor: Python {found} is too old for portagemm: it needs 3.10 or newer\n")
    sys.exit(1)

from portagemm.doctor.main import main

sys.exit(main(sys.argv[1:]))
