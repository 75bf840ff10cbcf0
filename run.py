"""Starts the server: the same as `luxx serve`, and takes the same options."""

import sys

from luxx.app.entry import main

if __name__ == "__main__":
    sys.exit(main(["serve", *sys.argv[1:]]))
