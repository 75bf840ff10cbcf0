"""The HTTP and WebSocket API: routes that parse, call a service and shape the answer."""
