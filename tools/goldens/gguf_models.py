"""Tiny models of every architecture that Sconce reads from GGUF, as saved by transformers and as
converted by llama.cpp.

    python gguf_models.py --llama-cpp DIR --out DIR [--only NAME]

DIR of llama.cpp is a source tree with `conversion/` and `gguf-py/`. Each output directory has
`config.json` and `model.safetensors` of transformers and one `model.gguf` (or its parts). Weights
are random, including norms and biases, so that swapped tensors are detected. Nothing of this is
committed.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

import torch
import transformers as hf

VOCAB = 96
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GQA = SIZES | {"num_key_value_heads": 2}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}
FACTORS = [1.0 + 0.05 * i for i in range(8)]
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": FACTORS,
    "long_factor": [2.5 * f for f in FACTORS],
    "original_max_position_embeddings": 128,
}
T5 = {
    "vocab_size": VOCAB,
    "d_model": 64,
    "d_kv": 12,
    "d_ff": 96,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 16,
    "decoder_start_token_id": 0,
    "n_positions": 256,
}
# The code of these architectures is on the hub, so transformers has no class; tensors and config
# are written in the hub's form.
QWEN_1 = SIZES | {
    "architectures": ["QWenLMHeadModel"],
    "model_type": "qwen",
    "intermediate_size": 192,
    "kv_channels": 16,
    "layer_norm_epsilon": 1e-06,
    "no_bias": True,
    "rotary_emb_base": 10000,
    "rotary_pct": 1.0,
    "seq_length": 128,
    "tie_word_embeddings": False,
    "use_dynamic_ntk": True,
    "use_logn_attn": True,
}
NOMIC = {
    "architectures": ["NomicBertModel"],
    "model_type": "nomic_bert",
    "activation_function": "swiglu",
    "causal": False,
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 2048,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "n_embd": 64,
    "n_head": 4,
    "n_inner": 96,
    "n_layer": 2,
    "n_positions": 8192,
    "prenorm": False,
    "qkv_proj_bias": False,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "type_vocab_size": 2,
    "vocab_size": VOCAB,
}
# transformers 5 reads these fields instead, so the converter needs them; the hub's file has none.
NATIVE = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}


def llama(**more):
    return hf.LlamaForCausalLM, hf.LlamaConfig(**(GQA | more))


def mistral(**more):
    return hf.MistralForCausalLM, hf.MistralConfig(**(GQA | {"sliding_window": None} | more))


def mixtral(**more):
    sizes = GQA | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}
    return hf.MixtralForCausalLM, hf.MixtralConfig(**(sizes | more))


def qwen(kind, **more):
    return getattr(hf, f"{kind}ForCausalLM"), getattr(hf, f"{kind}Config")(**(GQA | more))


EXPERTS = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}


def gemma(kind, config=None, **more):
    sizes = GQA | {"head_dim": 32} | more
    return getattr(hf, f"{kind}ForCausalLM"), getattr(hf, f"{config or kind}Config")(**sizes)


def falcon(**more):
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return hf.FalconForCausalLM, hf.FalconConfig(**(sizes | more))


def neox(**more):
    return hf.GPTNeoXForCausalLM, hf.GPTNeoXConfig(**(SIZES | more))


def bert(model, config, **more):
    return model, config(**(SIZES | {"pad_token_id": 0} | more))


# name: (class and config, tokenizer's kind, options of the converter; "outtype" is its first
# argument)
VARIANTS = {
    "llama": (llama(), "llama", {}),
    "llama-tied": (llama(tie_word_embeddings=True, head_dim=32), "llama", {}),
    "llama-bias": (llama(attention_bias=True, mlp_bias=True), "llama", {}),
    "llama-fused": (llama(attention_bias=True), "llama", {"fuse_qkv": True}),
    "llama-split": (llama(), "llama", {"split_max_tensors": 7}),
    "llama-split-first": (llama(), "llama", {"split_max_tensors": 7, "small_first_shard": True}),
    "llama-3": (llama(hidden_size=256, rope_parameters=LLAMA3, max_position_embeddings=131072), "gpt2", {}),
    "llama-3-odd": (
        llama(
            hidden_size=256,
            rope_parameters=LLAMA3 | {"factor": 16.0, "low_freq_factor": 2.0, "high_freq_factor": 6.0, "original_max_position_embeddings": 1024},
        ),
        "gpt2",
        {},
    ),
    "llama-linear": (llama(rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}), "llama", {}),
    "llama-yarn": (llama(rope_parameters=YARN), "llama", {}),
    "llama-yarn-all": (
        llama(rope_parameters=YARN | {"attention_factor": 1.25, "beta_fast": 24.0, "beta_slow": 2.0}),
        "llama",
        {},
    ),
    "llama-q8": (llama(attention_bias=True), "llama", {"outtype": "MOSTLY_Q8_0"}),
    "falcon-q8": (falcon(num_kv_heads=2, new_decoder_architecture=True), "gpt2", {"outtype": "MOSTLY_Q8_0"}),
    "mixtral-q8": (mixtral(), "llama", {"outtype": "MOSTLY_Q8_0"}),
    "mistral": (mistral(head_dim=24), "llama", {}),
    "mixtral": (mixtral(), "llama", {}),
    "qwen": ((None, QWEN_1), "gpt2", {}),
    "qwen2": (qwen("Qwen2"), "gpt2", {}),
    "qwen2-tied": (qwen("Qwen2", tie_word_embeddings=True), "gpt2", {}),
    "qwen2-fused": (qwen("Qwen2"), "gpt2", {"fuse_qkv": True}),
    "qwen2-moe": (qwen("Qwen2Moe", shared_expert_intermediate_size=48, **EXPERTS), "gpt2", {}),
    "qwen3": (qwen("Qwen3", head_dim=32), "gpt2", {}),
    "qwen3-yarn": (qwen("Qwen3", head_dim=32, rope_parameters=YARN), "gpt2", {}),
    "qwen3-moe": (qwen("Qwen3Moe", head_dim=32, norm_topk_prob=True, **EXPERTS), "gpt2", {}),
    "phi2": (
        (hf.PhiForCausalLM, hf.PhiConfig(**(SIZES | {"intermediate_size": 256, "partial_rotary_factor": 0.5}))),
        "gpt2",
        {},
    ),
    "phi3": ((hf.Phi3ForCausalLM, hf.Phi3Config(**(GQA | {"pad_token_id": 0, "sliding_window": 47}))), "llama", {}),
    "phi3-long": (
        (hf.Phi3ForCausalLM, hf.Phi3Config(**(GQA | {"pad_token_id": 0, "rope_parameters": LONGROPE}))),
        "llama",
        {},
    ),
    "phi4-mini": (
        (
            hf.Phi3ForCausalLM,
            hf.Phi3Config(
                **(
                    GQA
                    | {
                        "pad_token_id": 0,
                        "tie_word_embeddings": True,
                        "rope_parameters": LONGROPE
                        | {"partial_rotary_factor": 0.5, "short_factor": FACTORS[:4], "long_factor": FACTORS[4:]},
                    }
                )
            ),
        ),
        "gpt2",
        {},
    ),
    "stablelm": ((hf.StableLmForCausalLM, hf.StableLmConfig(**(GQA | {"use_qkv_bias": True}))), "gpt2", {}),
    "stablelm-12b": (
        (
            hf.StableLmForCausalLM,
            hf.StableLmConfig(**(GQA | {"qk_layernorm": True, "use_parallel_residual": True, "partial_rotary_factor": 0.5})),
        ),
        "gpt2",
        {},
    ),
    "falcon-7b": (falcon(num_kv_heads=1, multi_query=True, new_decoder_architecture=False), "gpt2", {}),
    "falcon-40b": (falcon(num_kv_heads=2, new_decoder_architecture=True), "gpt2", {}),
    "falcon-11b": (
        falcon(num_kv_heads=2, new_decoder_architecture=True, num_ln_in_parallel_attn=1, tie_word_embeddings=False),
        "gpt2",
        {},
    ),
    "gemma": (gemma("Gemma"), "llama", {}),
    "gemma2": (gemma("Gemma2", query_pre_attn_scalar=32, sliding_window=64), "llama", {}),
    "gemma3": (
        gemma("Gemma3", "Gemma3Text", num_hidden_layers=7, query_pre_attn_scalar=32, sliding_window=64),
        "llama",
        {},
    ),
    "gemma3-linear": (
        gemma(
            "Gemma3",
            "Gemma3Text",
            num_hidden_layers=7,
            query_pre_attn_scalar=32,
            sliding_window=64,
            rope_parameters={
                "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        ),
        "llama",
        {},
    ),
    "gpt2": (
        (hf.GPT2LMHeadModel, hf.GPT2Config(vocab_size=VOCAB, n_embd=64, n_layer=2, n_head=4, n_positions=128, n_ctx=128, bos_token_id=1, eos_token_id=2)),
        "gpt2",
        {},
    ),
    "gptneox": (neox(rotary_pct=0.5), "gpt2", {}),
    "gptneox-sequential": (neox(rotary_pct=1.0, use_parallel_residual=False), "gpt2", {}),
    "t5": ((hf.T5ForConditionalGeneration, hf.T5Config(**T5)), "t5", {}),
    "t5-gated": (
        (hf.T5ForConditionalGeneration, hf.T5Config(**T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False)),
        "t5",
        {},
    ),
    "umt5": ((hf.UMT5ForConditionalGeneration, hf.UMT5Config(**T5)), "t5", {}),
    "t5-encoder": ((hf.T5EncoderModel, hf.T5Config(**T5)), "t5", {}),
    "bert": (bert(hf.BertModel, hf.BertConfig), "bert", {}),
    "roberta": (bert(hf.RobertaModel, hf.RobertaConfig, type_vocab_size=1, pad_token_id=1, max_position_embeddings=130), "gpt2", {}),
    "xlm-roberta": (
        bert(hf.XLMRobertaForSequenceClassification, hf.XLMRobertaConfig, type_vocab_size=1, pad_token_id=1, max_position_embeddings=130, num_labels=1),
        "t5",
        {},
    ),
    "distilbert": (
        (hf.DistilBertModel, hf.DistilBertConfig(vocab_size=VOCAB, dim=64, n_layers=2, n_heads=4, hidden_dim=96, max_position_embeddings=128)),
        "bert",
        {},
    ),
    "nomic-bert": ((None, NOMIC), "bert", {}),
}


def nomic_tensors():
    shapes = {
        "embeddings.word_embeddings.weight": (VOCAB, 64),
        "embeddings.token_type_embeddings.weight": (2, 64),
        "emb_ln.weight": (64,),
        "emb_ln.bias": (64,),
    }
    for layer in range(2):
        for name, shape in {
            "attn.Wqkv.weight": (192, 64),
            "attn.out_proj.weight": (64, 64),
            "mlp.fc11.weight": (96, 64),
            "mlp.fc12.weight": (96, 64),
            "mlp.fc2.weight": (64, 96),
            "norm1.weight": (64,),
            "norm1.bias": (64,),
            "norm2.weight": (64,),
            "norm2.bias": (64,),
        }.items():
            shapes[f"encoder.layers.{layer}.{name}"] = shape
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def qwen_1_tensors():
    shapes = {
        "transformer.wte.weight": (VOCAB, 64),
        "transformer.ln_f.weight": (64,),
        "lm_head.weight": (VOCAB, 64),
    }
    for layer in range(2):
        for name, shape in {
            "ln_1.weight": (64,),
            "ln_2.weight": (64,),
            "attn.c_attn.weight": (192, 64),
            "attn.c_attn.bias": (192,),
            "attn.c_proj.weight": (64, 64),
            "mlp.w1.weight": (96, 64),
            "mlp.w2.weight": (96, 64),
            "mlp.c_proj.weight": (64, 96),
        }.items():
            shapes[f"transformer.h.{layer}.{name}"] = shape
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def save(model, config, where):
    if model is None:
        from safetensors.torch import save_file

        tensors, more = (qwen_1_tensors(), {}) if config is QWEN_1 else (nomic_tensors(), NATIVE)
        save_file(tensors, where / "model.safetensors", metadata={"format": "pt"})
        (where / "config.json").write_text(json.dumps(config | more))
        return
    model = model(config).eval()
    with torch.no_grad():
        if getattr(config, "scale_decoder_outputs", None) is False:
            # T5 1.1 has an untied LM head, whatever this version of transformers reads from the
            # config.
            model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
            model.config.tie_word_embeddings = False
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.5)
    model.save_pretrained(where)


def fake_vocabulary(kind, config):
    """The tokenizer files that llama.cpp would read."""

    def set_vocab(self):
        types = [1] * VOCAB
        types[:3] = [2, 3, 3]
        writer = self.gguf_writer
        writer.add_tokenizer_model(kind)
        writer.add_tokenizer_pre("default")
        writer.add_token_list([f"<{i}>" for i in range(VOCAB)])
        if kind in ("llama", "t5"):
            writer.add_token_scores([-float(i) for i in range(VOCAB)])
        writer.add_token_types(types)
        if kind == "gpt2":
            writer.add_token_merges(["a b", "ab c"])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        if config.get("pad_token_id") is not None:
            writer.add_pad_token_id(config["pad_token_id"])
        if "type_vocab_size" in config:
            writer.add_token_type_count(config["type_vocab_size"])
        writer.add_chat_template("{{ messages }}")

    return set_vocab


def convert(where, kind, options):
    options = dict(options)
    import gguf
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

    config = json.loads((where / "config.json").read_text())
    vocabulary = {f"<{i}>": i for i in range(VOCAB)}
    (where / "tokenizer.json").write_text(json.dumps({"model": {"type": "WordPiece", "vocab": vocabulary}, "added_tokens": []}))
    hparams = ModelBase.load_hparams(where, False)
    if hparams["model_type"] == "gpt_neox":
        # The converter reads this field, which transformers 5 writes under another name.
        hparams["rotary_pct"] = hparams["rope_parameters"]["partial_rotary_factor"]
    found = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
    patched = type(found.__name__, (found,), {"model_arch": found.model_arch, "set_vocab": fake_vocabulary(kind, config)})
    if hasattr(found, "_xlmroberta_tokenizer_init"):
        patched._is_tokenizer_xlmroberta = lambda self: False
    if found.__name__ == "StableLMModel":
        # The converter yields its stacked norms from a generator whose result is ignored.
        def modify(self, *arguments):
            stacked = yield from found.modify_tensors(self, *arguments)
            yield from stacked or ()

        patched.modify_tensors = modify
    outtype = getattr(gguf.LlamaFileType, options.pop("outtype", "ALL_F32"))
    patched(where, outtype, where / "model.gguf", hparams=hparams, **options).write()


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--llama-cpp", type=Path, required=True)
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--only")
    arguments = arguments.parse_args()
    sys.path[:0] = [str(arguments.llama_cpp), str(arguments.llama_cpp / "gguf-py")]
    hf.utils.logging.set_verbosity_error()
    failed = []
    for name, ((model, config), kind, options) in VARIANTS.items():
        if arguments.only not in (None, name):
            continue
        where = arguments.out / name
        shutil.rmtree(where, ignore_errors=True)
        where.mkdir(parents=True)
        torch.manual_seed(sum(name.encode()))
        try:
            save(model, config, where)
            convert(where, kind, options)
            if model is None:
                (where / "config.json").write_text(json.dumps(config))
        except Exception as e:
            failed.append(f"{name}: {e!r}")
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
