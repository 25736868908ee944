"""The pure part of the benchmarks: numbers in, numbers out; no clock, socket, file or process."""
