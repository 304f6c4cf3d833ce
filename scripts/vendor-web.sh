#!/usr/bin/env bash
# Usage: vendor-web.sh [FOLDER]
# Makes FOLDER (src/serve/web/vendor) anew: what others wrote of the web page, from the packages that
# scripts/vendor-web/package-lock.json pins by their hashes. Only a change of these packages needs it; the build does not.
set -euo pipefail
cd "$(dirname "$0")/.."
packages=build/vendor-web
if ! cmp -s scripts/vendor-web/package-lock.json "$packages/installed.json"; then
  mkdir -p "$packages"
  cp scripts/vendor-web/package.json scripts/vendor-web/package-lock.json "$packages/"
  npm ci --prefix "$packages" --ignore-scripts --no-audit --no-fund --loglevel=error
  cp scripts/vendor-web/package-lock.json "$packages/installed.json"
fi
node scripts/vendor-web/build.mjs "$packages" "${1:-src/serve/web/vendor}"
