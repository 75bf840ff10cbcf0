"""Outgoing HTTP, the addresses it may reach, and the proxy that programs in the sandbox use."""
