"""Writes the converted tokenizers to DUMP/NAME.json, and their outputs for the texts to
DUMP/NAME.rows.json."""
import json, os, sys, warnings
os.environ["HF_HUB_OFFLINE"] = "1"
warnings.simplefilter("ignore")
import transformers
transformers.logging.set_verbosity_error()
from transformers import AutoTokenizer
from corpus import TEXTS, PAIRS

def rows(t):
    out = []
    for text, pair in [(x, None) for x in TEXTS] + [(TEXTS[a], TEXTS[b]) for a, b in PAIRS]:
        kw = dict(return_token_type_ids=True, return_special_tokens_mask=True)
        if t.is_fast:
            kw["return_offsets_mapping"] = True
        e = t(text, pair, **kw)
        out.append({k: e[k] for k in e if k != "attention_mask"})
    return out

def main(dirs, dump, slow):
    os.makedirs(dump, exist_ok=True)
    for name in sorted(os.listdir(dirs)):
        d = os.path.join(dirs, name)
        try:
            t = AutoTokenizer.from_pretrained(d, use_fast=not slow)
        except Exception as e:
            print(name, "FAILED", type(e).__name__, str(e)[:300]); continue
        if t.is_fast:
            open(os.path.join(dump, name + ".json"), "w").write(t.backend_tokenizer.to_str())
        json.dump(rows(t), open(os.path.join(dump, name + ".rows.json"), "w"))
        print(name, type(t).__name__, "fast" if t.is_fast else "slow", len(t))

main(sys.argv[1], sys.argv[2], len(sys.argv) > 3)
