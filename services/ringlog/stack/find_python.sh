#!/bin/sh
# Which Python shall set-up use? Prints its path, or says what there is and what to do, and ends with status 3.
#
#   find_python.sh            the one of .venv, else the newest in PATH that fits
#   find_python.sh PYTHON     this one, if it fits
#   find_python.sh --others   each other fitting one of this machine (also pyenv's and uv's), one a line
#
# Nothing but a shell is taken for granted. What fits is what pyproject.toml requires; 3.14 comes last, since one
# dependency has no wheel for it and a compiler builds it.
root=$(cd "$(dirname "$0")/../../.." && pwd)
set -- "${1:-}" $(sed -n 's/^requires-python = ">=3\.\([0-9]*\),<3\.\([0-9]*\)"$/\1 \2/p' "$root/pyproject.toml")
names='python3.13 python3.12 python3.11 python3.14 python3 python /usr/bin/python3'

# A name in PATH may be a shim for a Python that is not there: only one that answers counts.
minor() {
  "$1" -c 'import sys; assert sys.version_info[0] == 3; print(sys.version_info[1])' 2>/dev/null
}

fits() {
  found=$(minor "$1") && [ "$found" -ge "$2" ] && [ "$found" -lt "$3" ]
}

if [ "$1" = --others ]; then
  used=$(minor "$root/.venv/bin/python") seen=
  for python in $names "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/python3 "$HOME"/.local/share/uv/python/*/bin/python3; do
    if fits "$python" "$2" "$3"; then
      case " $used $seen " in *" $found "*) ;; *) seen="$seen $found"; command -v "$python" ;; esac
    fi
  done
  exit 0
fi

least=$2 above=$3
if [ -n "$1" ]; then
  set -- "$1"
else
  set -- "$root/.venv/bin/python" $names
fi
for python; do
  if fits "$python" "$least" "$above"; then
    command -v "$python"
    exit 0
  fi
done

{
  printf 'setup: no Python that fits: 3.%s to 3.%s\n\nThere is:' "$least" "$((above - 1))"
  there=
  for python; do
    version=$("$python" --version 2>&1) && there="$there
    $python ($version)"
  done
  printf '%s\n\n' "${there:- none}"
  printf '%s\n' 'Install one and start again:' '' \
    '    Debian 12 or 13          sudo apt-get install python3 python3-venv' \
    '    Ubuntu 24.04 or newer    sudo apt-get install python3 python3-venv' \
    '    Ubuntu 22.04             sudo apt-get install python3.11 python3.11-venv' \
    '    Fedora                   sudo dnf install python3.13' \
    '    macOS                    brew install python@3.13' '' \
    'One that is not in PATH: make setup PYTHON=/path/to/python3'
} >&2
exit 3
