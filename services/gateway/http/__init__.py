"""The HTTP face: uvicorn's protocol with limits, and the few ASGI pieces that the gateway needs."""
