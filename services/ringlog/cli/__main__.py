"""The program ``ringlog``, also ``python -m ringlog.cli``. It names a missing extra, even without the extra ``cli``."""

from __future__ import annotations

import sys

from ringlog.extras import ExtraMissing, explained
from ringlog.runtime.json_errors import print_exception, wants_json


def main() -> None:
    """Run the command line."""
    try:
        with explained():
            from ringlog.cli.main import main as run

            run()
    except ExtraMissing as error:
        if wants_json():
            print_exception(error.code, error)
        else:
            print(f"{error.code}: {error}", file=sys.stderr)
        sys.exit(error.exit_status)


if __name__ == "__main__":
    main()
