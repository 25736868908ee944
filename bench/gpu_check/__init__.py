"""`./just gpu-check`: everything that only a machine with a GPU can tell, in one command of less than eight minutes.

Each part (parts.py) is a process of its own with a time limit of its own, and writes down what it finds as it finds it
(findings.py), so that a part which fails, hangs or loses the device takes nothing with it. With --dry-run every part
does what needs no device, with the emulator of the tests in the device's place.
"""
