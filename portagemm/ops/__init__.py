"""One file an operation: each checks its arguments, then hands them to `_dispatch`."""
