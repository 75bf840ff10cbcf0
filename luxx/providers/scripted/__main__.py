"""`python -m luxx.providers.scripted --script FILE.yaml --port 8099`."""

import sys

from luxx.providers.scripted.provider import main

sys.exit(main())
