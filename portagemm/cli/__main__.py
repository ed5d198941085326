"""``python -m portagemm.cli``: the same as the ``portagemm`` script."""

from __future__ import annotations

from . import main

if __name__ == "__main__":
    main()
