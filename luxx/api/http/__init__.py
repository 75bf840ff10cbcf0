"""What all routes share: limits, guards, streaming responses, the WebSocket, the envelope, errors."""
