"""`make bench`: what Luxx costs, beside floors and peers measured in the same run.

One process plays the model and the clients; the server under measure is a process of its own, on a
core of its own where the system can pin. Nothing here is a test: pytest collects no file of this folder.
"""
