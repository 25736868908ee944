"""The load client: many streams at once over plain sockets, at little cost of its own."""
