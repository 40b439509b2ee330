"""goldens/labels.json: outputs of the token-classification pipeline for given scores, for each
tokenizer.

Needs torch and transformers 5. The tokenizers are those of the goldens' layouts, converted
beforehand: DUMP/NAME.json.
"""
import json, sys, types
import torch
import transformers
transformers.logging.set_verbosity_error()
from transformers import BertConfig, BertForTokenClassification, PreTrainedTokenizerFast, pipeline
from transformers.modeling_outputs import TokenClassifierOutput

TEXTS = [
    "Anna Müller works for Northwind Traders in Hamburg.",
    "  Mr. O'Brien's naïve   résumé\tdidn't, e\u0301 ﬁn!",
    "東京は日本の首都です。 👩‍👩‍👧‍👦 in Zürich",
    "unbelievable tokenization <unk> [UNK] ab[UNK]cd",
    "x",
]
LABELS = [["O", "B-PER", "I-PER", "B-LOC", "I-LOC"], ["I-A-B", "O", "PER", "B-A-B"]]

def main(dump, out):
    torch.manual_seed(7)
    cases = []
    for name, unk in [("bert-cased", "[UNK]"), ("roberta", "<unk>"), ("xlmr", "<unk>")]:
        t = PreTrainedTokenizerFast(tokenizer_file=f"{dump}/{name}.json", unk_token=unk, model_max_length=512)
        for labels in LABELS if name == "bert-cased" else LABELS[:1]:
            config = BertConfig(vocab_size=2000, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8,
                                id2label=dict(enumerate(labels)), label2id={l: i for i, l in enumerate(labels)})
            model = BertForTokenClassification(config)
            for text in TEXTS:
                n = len(t(text)["input_ids"])
                logits = (torch.randn(1, n, len(labels)) * 3).round(decimals=1)
                logits[0, :, 0] += 0.5
                logits = logits.round(decimals=1)
                model.forward = types.MethodType(lambda self, logits=logits, **kw: TokenClassifierOutput(logits=logits), model)
                pipe = pipeline("token-classification", model=model, tokenizer=t, device="cpu")
                results = {}
                for strategy in ["none", "simple", "first", "average", "max"]:
                    rows = pipe(text, aggregation_strategy=strategy)
                    results[strategy] = [[r.get("entity", r.get("entity_group")), round(float(r["score"]), 6), r.get("index"), r["word"], r["start"], r["end"]] for r in rows]
                cases.append({"layout": name, "labels": labels, "text": text, "logits": [round(x, 1) for x in logits.flatten().tolist()], "entities": results})
    json.dump(cases, open(out, "w"), separators=(",", ":"), ensure_ascii=False)

main(sys.argv[1], sys.argv[2])
