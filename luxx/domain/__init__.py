"""What Luxx stores and serves besides runs, one package per subject."""
