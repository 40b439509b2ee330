#!/usr/bin/env bash
# A pool over three hosts (docs/pool.md): a worker of its own and two servers, here processes on one
# machine. While clients send requests, a host is killed and comes back. Every request must be answered,
# or refused with a reason; no answer may be wrong.
#
# usage: examples/scale/pool.sh [small|full] [BINARY]
#
# small: 12 seconds, one host dies. full: two minutes, a host dies every 15 seconds.
set -euo pipefail
mode=${1:-small}
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
case $mode in
  small) seconds=12 every=5 ;;
  full) seconds=120 every=15 ;;
  *) echo "usage: $0 [small|full] [BINARY]" >&2; exit 2 ;;
esac
if [ $# -gt 1 ]; then
  binary=$(realpath "$2")
else
  (cd "$root" && cargo build --release --quiet --bin sconce)
  binary=$(realpath "${CARGO_TARGET_DIR:-$root/target}/release/sconce")
fi
python3 -B "$here/pool.py" "$binary" "$seconds" "$every"
