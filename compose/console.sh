#!/bin/sh
# Run the web console. The first start creates a certificate, and a token for the user `operator`.
set -eu
umask 077
cd /var/lib/ringlog
if [ ! -e trust/console.properties ]; then
  ringlog cluster certificates trust --client console --days 3600
fi
if [ ! -e tokens ]; then
  printf 'operator %s\n' "$(openssl rand -hex 32)" >tokens.new
  mv tokens.new tokens
fi
export RINGLOG_TRUST_CONFIG=trust/console.properties
exec ringlog console --listen 0.0.0.0:8443 --tokens tokens
