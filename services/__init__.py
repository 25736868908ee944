"""The five services; each is a process of its own and none imports another."""
