"""`luxx` for a measured server. With BENCH_PROFILE the thread of its event loop is profiled."""

import cProfile
import os
import sys

from luxx.app.entry import main

if __name__ == "__main__":
    profile_file = os.environ.get("BENCH_PROFILE")
    if profile_file is None:
        sys.exit(main())
    profiler = cProfile.Profile()
    try:
        profiler.runcall(main)
    finally:
        profiler.dump_stats(profile_file)
