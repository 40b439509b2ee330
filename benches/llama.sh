#!/usr/bin/env bash
# Sconce against llama.cpp on one GGUF file: benches/llama.sh FILE.gguf [ROUNDS]
#
# The two take turns, so that both see the same state of the machine; prints the medians and their
# ratio. llama-bench is on the path, or LLAMA_BENCH names it. Let nothing else run: llama.cpp's
# threads wait for each other, and lose more than ours when one is delayed.
set -euo pipefail
file=$1 rounds=${2:-5} llama=${LLAMA_BENCH:-llama-bench} threads=${RAYON_NUM_THREADS:-$(nproc)}
cargo build --quiet --release --manifest-path "$(dirname "$0")/../Cargo.toml"
sconce=$(dirname "$0")/../target/release/sconce
results=$(mktemp)
trap 'rm -f "$results"' EXIT
rates() { python3 -c "import json, sys
for run in $1: print('$2', $3)" >> "$results"; }
all='json.load(sys.stdin)'
for _ in $(seq "$rounds"); do
  "$llama" -m "$file" -t "$threads" -p 512 -n 128 -r 1 -o json 2> /dev/null |
    rates "$all" llama.cpp "'pp512' if run['n_prompt'] else 'tg128', run['avg_ts']"
  "$sconce" bench -q -m "$file" --reps 1 --json | rates "${all}['lines']" sconce "run['test'], run['tokens_per_second']"
  "$sconce" bench -q -m "$file" --reps 1 --prompt-tokens 0 --parallel 16 --json |
    rates "${all}['lines']" sconce "'16×tg128', run['tokens_per_second']"
done
python3 - "$results" <<'EOF'
import statistics, sys
runs = {}
for line in open(sys.argv[1]):
    who, test, rate = line.split()
    runs.setdefault((test, who), []).append(float(rate))
median = {key: statistics.median(rates) for key, rates in runs.items()}
print("| test | llama.cpp | sconce | ratio |\n|---|---|---|---|")
for test in ("pp512", "tg128"):
    ours, theirs = median[test, "sconce"], median[test, "llama.cpp"]
    print(f"| {test} | {theirs:.1f} | {ours:.1f} | {ours / theirs:.2f} |")
many, one = median["16×tg128", "sconce"], median["tg128", "sconce"]
print(f"\n16 streams: {many:.1f} tokens per second, {many / one:.2f} times one stream")
EOF
