"""Loads libamdhip64 (argument: its path), starts HIP, counts GPUs: {"code", "count", "version"} or {"error"}."""

from __future__ import annotations

import ctypes
import json
import sys


def main(path: str) -> dict[str, object]:
    try:
        library = ctypes.CDLL(path)
        start, count_devices = library.hipInit, library.hipGetDeviceCount
    except (OSError, AttributeError) as error:
        return {"error": str(error)}
    code = start(0)
    count = ctypes.c_int(0)
    if code == 0:
        code = count_devices(ctypes.byref(count))
    version = ctypes.c_int(0)
    try:
        library.hipRuntimeGetVersion(ctypes.byref(version))
    except AttributeError:
        pass
    return {"code": code, "count": count.value, "version": version.value}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
