"""The sandbox under attack: `attacks.py` and `bombs.py` are the programs, `attack_runner.py` runs them."""
