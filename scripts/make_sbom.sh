#!/usr/bin/env bash
# Lists what a build is made of, below build/sbom: volley.cdx.json (CycloneDX: crates, Python and Node.js packages as
# their lock files pin them), licences.txt (crates) and system.txt (Debian packages as installed here).
set -euo pipefail
cd "$(dirname "$0")/.."

readonly CDXGEN=12.8.4
out=$PWD/build/sbom
tools=$out/tools
mkdir -p "$tools"

node_major=$(node --version 2>/dev/null | sed -nE 's/^v([0-9]+)\..*/\1/p') || true
if [ "${node_major:-0}" -lt 20 ]; then
  echo "sbom: cdxgen needs Node.js 20 or newer" >&2
  exit 1
fi
if [ "$(cat "$tools/version.txt" 2>/dev/null)" != "$CDXGEN" ]; then
  npm install --prefix "$tools" --ignore-scripts --omit=optional --no-audit --no-fund --loglevel=error \
    "@cyclonedx/cdxgen@$CDXGEN"
  echo "$CDXGEN" >"$tools/version.txt"
fi

# From a copy of what is committed: cdxgen would look into build/ as well.
sources=$out/volley
rm -rf "$sources"
mkdir -p "$sources"
git archive HEAD | tar -x -C "$sources"
(cd "$sources" && "$tools/node_modules/.bin/cdxgen" --no-install-deps -t cargo -t python -t npm -o "$out/volley.cdx.json" . \
  >"$out/cdxgen.log" 2>&1) || { cat "$out/cdxgen.log" >&2; exit 1; }
rm -rf "$sources"

cargo metadata --locked --format-version 1 --manifest-path textkit/Cargo.toml >"$out/crates.json"
python3 - "$out" <<'PYTHON'
import json, sys
out = sys.argv[1]
crates = json.load(open(f"{out}/crates.json"))["packages"]
unnamed = [c["name"] for c in crates if not c["license"]]
with open(f"{out}/licences.txt", "w") as file:
    for crate in sorted(crates, key=lambda c: (c["name"], c["version"])):
        print(crate["name"], crate["version"], crate["license"], sep="\t", file=file)
parts = len(json.load(open(f"{out}/volley.cdx.json"))["components"])
print(f"sbom: {parts} components, {len(crates)} crates with their licences")
if unnamed or parts < len(crates) // 2:
    sys.exit(f"sbom: incomplete: crates without a licence: {unnamed}")
PYTHON
rm "$out/crates.json"

if command -v dpkg-query >/dev/null; then
  dpkg-query -W -f='${Package}\t${Version}\n' 'libboost1.8*-dev' libspdlog-dev libfmt-dev libcli11-dev nlohmann-json3-dev \
    prometheus-cpp-dev libhwy-dev libcurl4-openssl-dev libedit-dev libssl-dev libyaml-cpp-dev libzmq3-dev cppzmq-dev libc6 libstdc++6 2>/dev/null |
    awk 'NF == 2' >"$out/system.txt" || true
fi
echo "sbom: $out"
