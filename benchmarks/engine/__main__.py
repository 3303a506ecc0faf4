"""What the engine costs a packet, beside memcpy and the best checksum in C of the same bytes.

    python -m benchmarks.engine [--quick] [--only WORDS] [--seconds S] [--json PATH]

Every case is measured in turn, round after round, in CPU time; the other engine, the interpreted
one, in a process of its own in the same rounds. Times of different machines, or of different runs,
say little: compare within one. The figures are also written to build/bench/engine.json, and drawn
in engine.svg beside it where matplotlib is installed.
"""

import sys

from .bench import main

if __name__ == "__main__":
    sys.exit(main())
