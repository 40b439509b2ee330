#!/usr/bin/env bash
# Sconce beside llama.cpp on one GGUF file: benches/llama.sh FILE.gguf [ROUNDS]
#
# By turns, so that both see the same machine; the medians and their ratio at the end. llama-bench is found on the path or named
# by LLAMA_BENCH. Let nothing else run: llama.cpp's threads wait for each other, and lose more than ours when one is held up.
set -euo pipefail
file=$1 rounds=${2:-5} llama=${LLAMA_BENCH:-llama-bench} threads=${RAYON_NUM_THREADS:-$(nproc)}
cargo build --quiet --release --manifest-path "$(dirname "$0")/../Cargo.toml"
sconce=$(dirname "$0")/../target/release/sconce
results=$(mktemp)
trap 'rm -f "$results"' EXIT
for _ in $(seq "$rounds"); do
  "$llama" -m "$file" -t "$threads" -p 512 -n 128 -r 1 -o json 2> /dev/null |
    python3 -c 'import json,sys; [print("llama.cpp", f"pp{t[\"n_prompt\"]}" if t["n_prompt"] else f"tg{t[\"n_gen\"]}", t["avg_ts"]) for t in json.load(sys.stdin)]' >> "$results"
  "$sconce" bench -q -m "$file" --reps 1 --json |
    python3 -c 'import json,sys; [print("sconce", l["test"], l["tokens_per_second"]) for l in json.load(sys.stdin)["lines"]]' >> "$results"
  "$sconce" bench -q -m "$file" --reps 1 --prompt-tokens 0 --parallel 16 --json |
    python3 -c 'import json,sys; [print("sconce", "16 streams", l["tokens_per_second"]) for l in json.load(sys.stdin)["lines"]]' | sed 's/16 streams/16×tg128/' >> "$results"
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
print(f"\n16 streams: {many:.1f} tokens a second, {many / one:.2f} times one")
EOF
