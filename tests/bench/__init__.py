"""`make bench`: what Luxx costs, next to baselines and peers that are measured in the same run.

One process is both the model and the clients. The measured server is another process, on a core of its own
where processes can be pinned. These files are no tests: pytest collects none of them.
"""
