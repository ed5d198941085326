"""An instruction-level executor for AMD code objects: see README.md in the folder above."""
