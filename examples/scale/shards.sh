#!/usr/bin/env bash
# Files to files with three processes that share the shards of a folder (docs/shards.md), while one after
# the other is killed with `kill -9` and replaced, as a cluster would do. Then each row must be there
# once, with the vector of a run that nobody disturbed.
#
# usage: examples/scale/shards.sh [small|full] [BINARY]
#
# small: 24 shards, two kills. full: 200 shards of 1,000 texts, a kill every 20 seconds. On several
# machines only the folder must be shared: start the same command on each.
set -euo pipefail
mode=${1:-small}
root=$(cd "$(dirname "$0")/../.." && pwd)
case $mode in
  small) files=24 rows=250 ;;
  full) files=200 rows=1000 ;;
  *) echo "usage: $0 [small|full] [BINARY]" >&2; exit 2 ;;
esac
if [ $# -gt 1 ]; then
  binary=$(realpath "$2")
else
  (cd "$root" && cargo build --release --quiet --bin sconce)
  binary=$(realpath "${CARGO_TARGET_DIR:-$root/target}/release/sconce")
fi
# Further flags of each process. Small would otherwise wait a whole lease for each kill.
[ "$mode" = full ] || : "${SHARDS_FLAGS:=--lease 5}"
read -ra flags <<< "${SHARDS_FLAGS:-}"

scratch=$(mktemp -d)
workers=()
stop() {
  for pid in "${workers[@]}"; do kill -9 "$pid" 2> /dev/null || true; done
  wait
  rm -rf "$scratch"
}
trap stop EXIT

venv=$(realpath -m "${SCONCE_SCALE_VENV:-$scratch/venv}")
if ! "$venv/bin/python" -c 'import pyarrow' 2> /dev/null; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check --no-compile pyarrow
fi

"$venv/bin/python" - "$scratch/in" "$files" "$rows" <<'EOP'
import json, pathlib, random, sys
folder, files, rows = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
words = "the a cat dog river house sells buys quiet large seven during after market bread guitar".split()
choice = random.Random(31)
folder.mkdir()
for n in range(files):
    lines = []
    for row in range(rows):
        text = " ".join(choice.choices(words, k=choice.randint(5, 20)))
        lines.append(json.dumps({"id": n * rows + row, "text": text}))
    (folder / f"part-{n:05}.jsonl").write_text("\n".join(lines) + "\n")
EOP

# The processes share this machine's cores; on machines of their own they would take all of them.
export SCONCE_THREADS=1
command=("$binary" embed -q -m minilm --keep id "${flags[@]}" "$scratch"/in/*.jsonl --shards)

echo "undisturbed: one process"
begun=$SECONDS
"${command[@]}" "$scratch/alone" > "$scratch/alone.log" 2>&1 || { cat "$scratch/alone.log"; exit 1; }
echo "  $((SECONDS - begun)) s"

echo "disturbed: three processes"
start() {
  "${command[@]}" "$scratch/shared" >> "$scratch/worker.log" 2>&1 &
  workers[$1]=$!
}
finished() { find "$scratch/shared" -path '*/tmp' -prune -o -name '*.parquet' -print 2> /dev/null | wc -l; }
begun=$SECONDS kills=0
for n in 0 1 2; do start "$n"; done
next=20
while :; do
  running=0
  for pid in "${workers[@]}"; do ! kill -0 "$pid" 2> /dev/null || running=$((running + 1)); done
  [ "$running" -gt 0 ] || break
  # In small when a sixth and a third of the shards are done, in full every 20 s.
  case $mode in
    small) due=$([ "$kills" -ge 2 ] || [ "$(finished)" -lt $((files * (kills + 1) / 6)) ] || echo yes) ;;
    full) due=$([ $((SECONDS - begun)) -lt "$next" ] || echo yes) ;;
  esac
  victim=$((kills % 3))
  if [ -n "$due" ] && kill -0 "${workers[victim]}" 2> /dev/null; then
    kill -9 "${workers[victim]}"
    wait "${workers[victim]}" 2> /dev/null || true
    start "$victim"
    kills=$((kills + 1)) next=$((SECONDS - begun + 20))
  fi
  [ $((SECONDS - begun)) -lt 3600 ] || { echo "not done after an hour" >&2; exit 1; }
  sleep 0.1
done
for pid in "${workers[@]}"; do wait "$pid" || { tail -n 20 "$scratch/worker.log"; exit 1; }; done
workers=()
echo "  $((SECONDS - begun)) s, $kills kills"
[ "$kills" -gt 0 ] || { echo "nobody was killed: the run was too short to show anything" >&2; exit 1; }
"$binary" shards status "$scratch/shared"

"$venv/bin/python" - "$scratch/alone" "$scratch/shared" $((files * rows)) <<'EOP'
import pathlib, sys
import pyarrow as pa
import pyarrow.parquet as pq

def rows(folder):
    files = [path for path in sorted(pathlib.Path(folder).rglob("*.parquet")) if "tmp" not in path.parts[-3:-1]]
    table = pa.concat_tables(pq.read_table(path, partitioning=None, columns=["id", "embedding"]) for path in files)
    return table.sort_by("id")

alone, shared, count = rows(sys.argv[1]), rows(sys.argv[2]), int(sys.argv[3])
for name, table in (("undisturbed", alone), ("disturbed", shared)):
    ids = table["id"].to_pylist()
    assert ids == list(range(count)), f"{name}: {len(ids)} rows, {len(set(ids))} of them different, of {count}"
assert shared.equals(alone), "a vector differs from that of the undisturbed run"
print(f"{count} rows, each once, with the vectors of the undisturbed run")
EOP
