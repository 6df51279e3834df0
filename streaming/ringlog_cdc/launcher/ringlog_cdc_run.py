"""Main program for ``spark-submit``: the CDC job, with the options of ``ringlog cdc run``.

The file is alone in its folder, because Python puts the folder of the main program first on its path.
"""

import sys

from ringlog_cdc.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
