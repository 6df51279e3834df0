#!/bin/sh
# Build the image ringlog:local (`make image`). Variables:
#
#   BASE     base image, NAME@sha256:DIGEST. Default: Debian's public image, as the Dockerfile names it.
#   ENGINE   podman or docker, with options. Default: podman if it is installed.
#   FLAGS    more options of its command `build`
#
# PIP_CERT, if set, is a file below /etc/ssl/certs: the build then trusts the authorities of this machine.
#
# Without BASE, and if no registry answers, mmdebstrap makes the base from Debian's signed archive, once. Its label
# `ringlog.archive` has the SHA-256 of each InRelease file, which names all packages by hash.
set -eu
cd "$(dirname "$0")/.."
suite=bookworm own=localhost/ringlog-base
engine=${ENGINE:-$(command -v podman || command -v docker || :)}
if [ -z "$engine" ]; then
  echo 'image: neither podman nor docker is installed' >&2
  exit 3
fi
base=${BASE:-$(sed -n 's/^ARG BASE=//p' compose/Dockerfile)}

if ! $engine image inspect "$base" >/dev/null 2>&1 && ! $engine pull -q "$base"; then
  if [ -n "${BASE:-}" ]; then exit 1; fi
  if ! $engine image inspect "$own" >/dev/null 2>&1; then
    echo "image: no registry answers, so mmdebstrap makes the base" >&2
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    mmdebstrap --quiet --variant=minbase --customize-hook="cd \"\$1/var/lib/apt/lists\" && sha256sum *InRelease >$work/archive" \
      "$suite" "$work/base.tar"
    $engine import --change "LABEL ringlog.archive=\"$(sed 's/ .*_dists_/ /; s/_InRelease//' "$work/archive" | tr '\n' ' ')\"" \
      "$work/base.tar" "$own" >/dev/null
  fi
  base=$own@$($engine image inspect --format '{{.Digest}}' "$own")
fi

if [ -n "${PIP_CERT:-}" ]; then
  certificates=/etc/ssl/certs there=/run/certificates
  FLAGS="${FLAGS:-} -v $certificates:$there:ro --build-arg PIP_CERT=$there${PIP_CERT#$certificates}"
  FLAGS="$FLAGS --build-arg JAVA_TOOL_OPTIONS=-Djavax.net.ssl.trustStore=$there/java/cacerts"
fi
$engine build ${FLAGS:-} --build-arg "BASE=$base" --label "ringlog.base=$base" -f compose/Dockerfile -t ringlog:local .
