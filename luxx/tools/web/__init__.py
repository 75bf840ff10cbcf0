"""The web as tools see it: pages read and searches made, over the guarded transport of `infra/network/`."""
