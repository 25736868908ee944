"""Engines behind one interface: the fake one and the CPU one."""
