"""goldens/layouts: tiny model directories without a tokenizer.json, and the reference's ids for our
texts.

Needs transformers 4.57 (the last that converts the older files itself), sentencepiece and protobuf.
The fast tokenizer is the reference, except where the SentencePiece model has options that its
conversion drops (byte fallback, no space before the text, spaces kept): there it is the slow one,
which is SentencePiece itself.

Training breaks ties at random, so a second run makes other vocabularies. With `--keep` the
vocabularies stay, and only the ids are computed.
"""
import json, os, sys
os.environ["HF_HUB_OFFLINE"] = "1"
import transformers
transformers.logging.set_verbosity_error()
from transformers import AutoTokenizer
from corpus import TEXTS, PAIRS
import dirs

SLOW = {"xlmr-bytes", "t5-bytes", "t5-bare", "siglip"}

# Offsets come from the tokenizers library, so one layout of each kind is enough.
OFFSETS = {"bert", "roberta-prefix", "xlmr"}
# Texts that the library splits differently from SentencePiece: it looks up whole graphemes in the
# character map, finds byte pieces in text that spells them, and does not strip U+2581 as a space.
# The slow tokenizers also continue differently after the name of a special token.
OTHERS = {TEXTS[i] for i in (7, 9, 11, 15, 16, 26, 35)}

def main(out, keep):
    root = os.path.join(out, "layouts")
    if not keep:
        dirs.main(root)
    json.dump({"texts": TEXTS, "pairs": PAIRS}, open(os.path.join(out, "texts.json"), "w"), ensure_ascii=False)
    for name in sorted(os.listdir(root)):
        t = AutoTokenizer.from_pretrained(os.path.join(root, name), use_fast=name not in SLOW)
        assert t.is_fast == (name not in SLOW), name
        rows = []
        for text, pair in [(x, None) for x in TEXTS] + [(TEXTS[a], TEXTS[b]) for a, b in PAIRS]:
            # As lists: otherwise a pair with an empty second text is treated as a single text.
            e = t([text], None if pair is None else [pair], return_token_type_ids=True, return_special_tokens_mask=True, return_offsets_mapping=t.is_fast)
            e = {k: v[0] for k, v in e.items()}
            row = {"ids": e["input_ids"]}
            if name in SLOW and {text, pair} & OTHERS:
                row = {}
            if t.is_fast and name in OFFSETS:
                row["offsets"] = [x for pair in e["offset_mapping"] for x in pair]
            if t.is_fast and pair is not None:
                row.update(types=e["token_type_ids"], mask=e["special_tokens_mask"])
            rows.append(row)
        json.dump(rows, open(os.path.join(root, name, "golden.json"), "w"), separators=(",", ":"))

main(sys.argv[1], "--keep" in sys.argv)
