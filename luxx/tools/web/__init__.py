"""The web for tools: reads pages and searches, over the guarded transport of `infra/network/`."""
