"""The demo provider: scripted answers for the sample room and the sample task, without key and network."""
