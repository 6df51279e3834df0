"""What ``spark-submit`` starts: the CDC job, with the options of ``ringlog cdc run``.

Alone in its folder, which Python puts first on its path.
"""

import sys

from ringlog_cdc.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
