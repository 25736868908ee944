"""Every message between services, with its wire form."""
