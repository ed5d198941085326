"""Arch profiles: data only. Read by portagemm.hal.profile; every key is explained in README.md."""
