#!/usr/bin/env bash
# Builds volley, shows three answers of the pocket models and what speculation gains, and says how to go on.
set -euo pipefail
cd "$(dirname "$0")/.."

make --no-print-directory build >&2
volley=build/cpu/bin/volley
"$volley" demo
cat <<END

Start the server with
  $volley serve
and ask it:
  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"model": "pocket", "messages": [{"role": "user", "content": "Sort these numbers: 50, 49, 35, 79."}]}'
\`make install\` puts volley on the PATH.
END
