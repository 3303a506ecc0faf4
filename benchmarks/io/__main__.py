import sys

from benchmarks.io.bench import main

if __name__ == "__main__":
    sys.exit(main())
