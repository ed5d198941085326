"""Put on PYTHONPATH, this makes every Python process that works on tensors one of the machine without hardware.

Processes that only start others, or ask HIP for its devices (`python -c`), stay as they are.
"""

import os
import sys

if "FAKE_ROCM" in os.environ and not {"-c", "benchmarks.rocm_check"} & set(sys.orig_argv):
    sys.path.insert(0, os.environ["FAKE_ROCM"])
    import machine
    import model

    sys.modules["machine_of_this_process"] = machine.Machine(model.execute)
