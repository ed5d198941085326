"""The CPU backend: the system's C++ compiler, and threads over blocks. It runs wherever Python does."""
