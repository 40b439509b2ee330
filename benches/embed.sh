#!/usr/bin/env bash
# Embeds 100,000 short texts from a file, including tokenization:
# benches/embed.sh PYTHON [TEXTS] [PEER_TEXTS] [ROUNDS]
#
# Times `sconce embed -f texts.txt -o vectors.npy` in f32 and bf16, including process start, and
# sentence-transformers and fastembed, if PYTHON has them, from the first text to the last
# embedding, without their start. Peers embed the first PEER_TEXTS of the file (default: all of
# it), and their rate is extrapolated. Engines take turns; the table has medians. MODEL is a folder
# or a name that sconce knows (default: minilm); SCONCE_THREADS is the number of threads of every
# engine (default: nproc).
set -euo pipefail
python=$1 texts=${2:-100000} fewer=${3:-$texts} rounds=${4:-3} model=${MODEL:-minilm}
export SCONCE_THREADS=${SCONCE_THREADS:-$(nproc)}
export OMP_NUM_THREADS=$SCONCE_THREADS MKL_NUM_THREADS=$SCONCE_THREADS RAYON_NUM_THREADS=$SCONCE_THREADS HF_HUB_OFFLINE=1
if [ -z "${SCONCE:-}" ]; then
  cargo build --quiet --release --manifest-path "$(dirname "$0")/../Cargo.toml"
  SCONCE=$(dirname "$0")/../target/release/sconce
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$python" - "$texts" > "$scratch/texts.txt" << 'EOP'
import random, sys
who = ["a man", "two women", "the old captain", "our neighbour", "a small company from Lisbon", "the committee", "every second student",
       "the quiet librarian", "a stray dog", "the government", "the youngest player", "some visitors", "nobody in the village"]
does = ["is eating", "has bought", "was looking for", "will probably sell", "cannot find", "wrote about", "is repairing", "has never seen",
        "asked for", "carefully painted", "keeps", "described", "would like to borrow"]
what = ["a bowl of noodles", "the broken bicycle", "an unusually large house", "several questions", "a letter from 1987", "the timetable",
        "three kinds of cheese", "a guitar without strings", "the results of the experiment", "most of the photographs", "warm bread"]
where = ["in the kitchen", "near the river", "at the end of a long street", "on a Tuesday morning", "after the storm", "behind the museum",
         "for less than twenty euros", "in front of 400 people", "during the second half", "before breakfast"]
more = ["and nobody was surprised", "although it had rained for days", "because the shop was closed", "and then went back to work",
        "but that was before the prices rose", "while the children watched television"]
choice = random.Random(7)
for _ in range(int(sys.argv[1])):
    words = [choice.choice(who), choice.choice(does), choice.choice(what)]
    if choice.random() < 0.6: words.append(choice.choice(where))
    if choice.random() < 0.4: words.append(choice.choice(more))
    print(" ".join(words).capitalize() + ".")
EOP
cat > "$scratch/peer.py" << 'EOP'
import json, os, pathlib, subprocess, sys, time
peer, model, scratch, count = sys.argv[1], *map(pathlib.Path, sys.argv[2:4]), int(sys.argv[4])
texts = (scratch / "texts.txt").read_text().splitlines()[:count]
threads = int(os.environ["SCONCE_THREADS"])
if peer == "sentence-transformers":
    import torch
    from sentence_transformers import SentenceTransformer
    torch.set_num_threads(threads)
    engine = SentenceTransformer(str(model), device="cpu")
    embed = lambda all: engine.encode(all, batch_size=32)
else:
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType
    dimension = json.loads((model / "config.json").read_text())["hidden_size"]
    TextEmbedding.add_custom_model("sconce/compared", PoolingType.MEAN, True, ModelSource(hf="sconce/compared"), dimension, "model.onnx")
    engine = TextEmbedding("sconce/compared", specific_model_path=str(scratch / "fastembed"), threads=threads)
    embed = lambda all: list(engine.embed(all, batch_size=256))
embed(texts[:64])
begun = time.perf_counter()
vectors = embed(texts)
print(len(vectors) / (time.perf_counter() - begun))
EOP
folder=$("$SCONCE" plan "$model" --json | "$python" -c 'import json, sys; print(json.load(sys.stdin)["root"])')
peers=()
"$python" -c 'import sentence_transformers' 2> /dev/null && peers+=(sentence-transformers)
if "$python" -c 'import fastembed, torch, onnx' 2> /dev/null; then
  mkdir "$scratch/fastembed"
  printf '{"model": "%s", "scratch": "%s"}' "$folder" "$scratch/fastembed" > "$scratch/job.json"
  "$python" "$(dirname "$0")/../crates/cli/src/commands/bench/compare/peers.py" export "$scratch/job.json" > /dev/null 2>&1
  cp "$folder"/*.json "$scratch/fastembed"
  peers+=(fastembed)
fi
for _ in $(seq "$rounds"); do
  for dtype in f32 bf16; do
    begun=$(date +%s.%N)
    "$SCONCE" embed -q -m "$model" -d cpu --dtype "$dtype" -f "$scratch/texts.txt" -o "$scratch/vectors.npy"
    echo "sconce-$dtype $("$python" -c "import time; print($texts / (time.time() - $begun))")" >> "$scratch/rates"
  done
  for peer in "${peers[@]}"; do
    echo "$peer $("$python" "$scratch/peer.py" "$peer" "$folder" "$scratch" "$fewer" 2> /dev/null)" >> "$scratch/rates"
  done
done
"$python" - "$scratch/rates" "$texts" "$fewer" << 'EOP'
import statistics, sys
runs = {}
for line in open(sys.argv[1]):
    who, rate = line.split()
    runs.setdefault(who, []).append(float(rate))
rates = {who: statistics.median(all) for who, all in runs.items()}
texts, fewer = int(sys.argv[2]), int(sys.argv[3])
print(f"{texts} texts" + (f"; peers extrapolated from {fewer}" if fewer < texts else "") + "\n")
print("| engine | texts/s | seconds | sconce f32 | sconce bf16 |\n|---|---|---|---|---|")
for who, rate in rates.items():
    ahead = "" if who.startswith("sconce") else f"{rates['sconce-f32'] / rate:.2f} × | {rates['sconce-bf16'] / rate:.2f} ×"
    print(f"| {who} | {rate:.0f} | {texts / rate:.1f} | {ahead or ' | '} |")
EOP
