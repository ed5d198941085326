"""`portagemm doctor`: what keeps this machine, container, WSL2 or cluster from using its GPUs, and what to do.

Standard library only: ``python -m portagemm.doctor`` runs where torch is broken and nothing else is installed.
It never sets or repairs anything.

How it is put together, for who adds a check:

* `host.Host` is the only door to the machine: files, environment, commands, children. A check never calls
  `os`, `pathlib`, `subprocess` or `os.environ` itself, so a whole machine can be replayed from a recording.
* `check` defines `Check` (by the decorator `check.check`), `Result`, `Remedy` and the statuses.
* `facts` holds what several checks need (PCI devices, WSL, container), each computed once a host.
* `checks/*.py`: one file a group, found by name; adding a file there is all it takes.
* `probes/*.py`: small scripts run as children under a time limit, for what may hang or crash.
* `runner` orders the checks by their dependencies and runs them; `report` is the outcome; `render` prints it.
* `machine_file` is the text format of recorded machines; `replay` makes a `Host` of one; `record` writes one.
"""

from __future__ import annotations
