import sys

from benchmarks.embed.bench import main

if __name__ == "__main__":
    sys.exit(main())
