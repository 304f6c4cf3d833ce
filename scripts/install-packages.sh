#!/usr/bin/env bash
# Usage: install-packages.sh NEEDS PACKAGE…
# Installs Debian packages as root or through sudo. NEEDS: what to say that the caller needs, where there is no apt.
set -euo pipefail
needs=$1
shift
if [ "$#" -eq 0 ]; then exit 0; fi

command -v apt-get >/dev/null || { echo "setup: install $needs" >&2; exit 1; }
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "setup: missing packages: $*: run this as root or install sudo" >&2; exit 1; }
  as_root=(sudo)
fi
echo "setup: installing $*" >&2
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update </dev/null
"${as_root[@]}" apt-get install -y --no-install-recommends "$@" </dev/null
