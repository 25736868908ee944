"""Print how many CUDA devices this process's environment shows: count_devices.py. Standard library only.

Asked of the driver, which knows best, in a process of its own: a node that has called the driver would hold memory of
the devices' host side for good, and would wait with it if it hangs.
"""

import ctypes
import sys

DRIVER = "libcuda.so.1"


def num_devices() -> int:
    """0 without a driver, or with one that finds none."""
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError:
        return 0
    number = ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(number)):
        return 0
    return number.value


if __name__ == "__main__":
    sys.stdout.write(f"{num_devices()}\n")
