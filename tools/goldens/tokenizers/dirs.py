"""Tiny model directories without a tokenizer.json, one for each layout found on the hub."""
import io, json, os, sys
import sentencepiece as spm
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from corpus import CORPUS, RULES

FULL = os.environ.get("FULL_CHARSMAP") == "1"

def put(out, name, files):
    d = os.path.join(out, name)
    os.makedirs(d, exist_ok=True)
    for file, content in files.items():
        if isinstance(content, bytes):
            open(os.path.join(d, file), "wb").write(content)
        elif isinstance(content, str):
            open(os.path.join(d, file), "w", encoding="utf-8", newline="").write(content)
        else:
            json.dump(content, open(os.path.join(d, file), "w", encoding="utf-8"), ensure_ascii=False)

def wordpiece(specials, lower):
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer(lowercase=lower)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=specials, show_progress=False))
    v = t.get_vocab()
    return "\n".join(sorted(v, key=v.get)) + "\n"

def bytelevel(specials, suffix=""):
    t = Tokenizer(models.BPE(end_of_word_suffix=suffix))
    if suffix:
        t.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    else:
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=400, special_tokens=[], initial_alphabet=sorted(alphabet), end_of_word_suffix=suffix, show_progress=False))
    s = json.loads(t.to_str())["model"]
    merges = [m if isinstance(m, str) else " ".join(m) for m in s["merges"]]
    tokens = sorted(s["vocab"], key=s["vocab"].get)
    if suffix:
        have = set(tokens)
        tokens += [c + suffix for c in sorted(alphabet) if c + suffix not in have]
        tokens = tokens + specials
    else:
        tokens = specials + tokens
    return {t: i for i, t in enumerate(tokens)}, "#version: 0.2\n" + "\n".join(merges) + "\n"

def sentencepiece(kind, vocab=260, **kw):
    f = io.BytesIO()
    args = dict(sentence_iterator=iter(CORPUS), model_writer=f, model_type=kind, vocab_size=vocab, character_coverage=0.98,
                hard_vocab_limit=False, minloglevel=2, num_threads=1)
    if FULL:
        args["normalization_rule_name"] = "nmt_nfkc"
    else:
        tsv = "/tmp/rules_%d.tsv" % os.getpid()
        with open(tsv, "w", encoding="utf-8") as h:
            for a, b in RULES.items():
                h.write(" ".join("%X" % ord(c) for c in a) + "\t" + " ".join("%X" % ord(c) for c in b) + "\n")
        args["normalization_rule_tsv"] = tsv
    args.update(kw)
    if args.get("normalization_rule_name"):
        args.pop("normalization_rule_tsv", None)
    spm.SentencePieceTrainer.train(**args)
    return f.getvalue()

def main(out):
    B = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    lower, cased = wordpiece(B, True), wordpiece(B, False)
    put(out, "bert", {"vocab.txt": lower, "config.json": {"model_type": "bert"}})
    put(out, "bert-cased", {"vocab.txt": cased, "config.json": {"model_type": "bert"}, "tokenizer_config.json": {"do_lower_case": False, "tokenizer_class": "BertTokenizer"},
        "special_tokens_map.json": {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": {"content": "[MASK]", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False}}})
    n = lower.count("\n")
    put(out, "bert-options", {"vocab.txt": lower, "config.json": {"model_type": "bert"},
        "tokenizer_config.json": {"do_lower_case": True, "strip_accents": False, "tokenize_chinese_chars": False, "additional_special_tokens": ["[SPECIAL1]"]},
        "added_tokens.json": {"[SPECIAL1]": n, "<new_tok>": n + 1, "NEWWORD": n + 2}})
    added = {str(i): {"content": t, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True} for i, t in enumerate(B)}
    added[str(n)] = {"content": "<new_tok>", "lstrip": True, "rstrip": True, "normalized": False, "single_word": False, "special": False}
    added[str(n + 1)] = {"content": "newword", "lstrip": False, "rstrip": False, "normalized": True, "single_word": True, "special": False}
    put(out, "distilbert", {"vocab.txt": lower, "config.json": {"model_type": "distilbert"}, "tokenizer_config.json": {"tokenizer_class": "DistilBertTokenizer", "added_tokens_decoder": added, "strip_accents": None}})
    put(out, "bert-renamed", {"vocab.txt": lower.replace("[CLS]", "<cls>").replace("[SEP]", "<sep>"), "config.json": {"model_type": "bert"}, "tokenizer_config.json": {"cls_token": "<cls>", "sep_token": {"__type": "AddedToken", "content": "<sep>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}, "tokenizer_class": "BertTokenizerFast"}})
    mp = ["<s>", "<pad>", "</s>", "<unk>"]
    put(out, "mpnet", {"vocab.txt": wordpiece(mp + ["[UNK]"], True) + "<mask>\n", "config.json": {"model_type": "mpnet"}, "tokenizer_config.json": {"do_lower_case": True}})
    vocab, merges = bytelevel(["<s>", "<pad>", "</s>", "<unk>"])
    vocab["<mask>"] = len(vocab)
    put(out, "roberta", {"vocab.json": vocab, "merges.txt": merges, "config.json": {"model_type": "roberta"}})
    put(out, "roberta-prefix", {"vocab.json": vocab, "merges.txt": merges.rstrip("\n") + "\n", "config.json": {"model_type": "roberta"},
        "tokenizer_config.json": {"add_prefix_space": True, "tokenizer_class": "RobertaTokenizer", "trim_offsets": False, "mask_token": {"__type": "AddedToken", "content": "<mask>", "lstrip": True, "normalized": True, "rstrip": False, "single_word": False}},
        "added_tokens.json": {"<new_tok>": len(vocab)}})
    dv, dm = bytelevel(["[CLS]", "[PAD]", "[SEP]", "[UNK]"])
    dv["[MASK]"] = len(dv)
    put(out, "deberta", {"vocab.json": dv, "merges.txt": dm, "config.json": {"model_type": "deberta"}, "tokenizer_config.json": {"do_lower_case": False, "vocab_type": "gpt2"}})
    cv, cm = bytelevel(["<|startoftext|>", "<|endoftext|>"], "</w>")
    put(out, "clip", {"vocab.json": cv, "merges.txt": cm, "config.json": {"model_type": "clip"},
        "tokenizer_config.json": {"unk_token": {"content": "<|endoftext|>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "__type": "AddedToken"}, "bos_token": {"content": "<|startoftext|>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "__type": "AddedToken"}, "eos_token": {"content": "<|endoftext|>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "__type": "AddedToken"}, "pad_token": "<|endoftext|>", "add_prefix_space": False, "do_lower_case": True, "model_max_length": 77},
        "special_tokens_map.json": {"bos_token": {"content": "<|startoftext|>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": True}, "eos_token": {"content": "<|endoftext|>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": True}, "unk_token": {"content": "<|endoftext|>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": True}, "pad_token": "<|endoftext|>"}})
    uni = sentencepiece("unigram")
    put(out, "xlmr", {"sentencepiece.bpe.model": uni, "config.json": {"model_type": "xlm-roberta"}})
    put(out, "xlmr-bytes", {"sentencepiece.bpe.model": sentencepiece("unigram", 500, byte_fallback=True), "config.json": {"model_type": "xlm-roberta"}, "tokenizer_config.json": {"tokenizer_class": "XLMRobertaTokenizer"}})
    put(out, "xlmr-bpe", {"sentencepiece.bpe.model": sentencepiece("bpe", user_defined_symbols=["<new_tok>"]), "config.json": {"model_type": "xlm-roberta"}, "tokenizer_config.json": {"tokenizer_class": "XLMRobertaTokenizer"}})
    put(out, "camembert", {"sentencepiece.bpe.model": uni, "config.json": {"model_type": "camembert"}})
    deb = sentencepiece("unigram", bos_id=1, eos_id=2, unk_id=3, pad_id=0, bos_piece="[CLS]", eos_piece="[SEP]", unk_piece="[UNK]", pad_piece="[PAD]")
    put(out, "deberta-v3", {"spm.model": deb, "config.json": {"model_type": "deberta-v2"}, "tokenizer_config.json": {"do_lower_case": False, "vocab_type": "spm"}})
    debb = sentencepiece("bpe", bos_id=1, eos_id=2, unk_id=3, pad_id=0, bos_piece="[CLS]", eos_piece="[SEP]", unk_piece="[UNK]", pad_piece="[PAD]", normalization_rule_name="identity")
    m = len(spm.SentencePieceProcessor(model_proto=debb))
    put(out, "deberta-v2-punct", {"spm.model": debb, "config.json": {"model_type": "deberta-v2"}, "tokenizer_config.json": {"do_lower_case": True, "split_by_punct": True, "tokenizer_class": "DebertaV2Tokenizer"}, "added_tokens.json": {"[MASK]": m}})
    t5 = sentencepiece("unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    put(out, "t5", {"spiece.model": t5, "config.json": {"model_type": "t5"}})
    put(out, "t5-new", {"spiece.model": t5, "config.json": {"model_type": "mt5"}, "tokenizer_config.json": {"tokenizer_class": "T5Tokenizer", "extra_ids": 5, "legacy": False}})
    put(out, "t5-bytes", {"spiece.model": sentencepiece("unigram", 500, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, byte_fallback=True), "config.json": {"model_type": "t5"}, "tokenizer_config.json": {"extra_ids": 0, "additional_special_tokens": []}})
    put(out, "t5-bare", {"spiece.model": sentencepiece("unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1, add_dummy_prefix=False, remove_extra_whitespaces=False), "config.json": {"model_type": "t5"}, "tokenizer_config.json": {"extra_ids": 3}})
    put(out, "siglip", {"spiece.model": t5, "config.json": {"model_type": "siglip"}, "tokenizer_config.json": {"tokenizer_class": "SiglipTokenizer", "do_lower_case": True, "model_max_length": 64, "pad_token": "</s>"}})
    alb = sentencepiece("unigram", pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols=["[CLS]", "[SEP]"], user_defined_symbols=["[MASK]"])
    put(out, "albert", {"spiece.model": alb, "config.json": {"model_type": "albert"}})

if __name__ == "__main__":
    main(sys.argv[1])
