//! Maps llama.cpp tensor names to transformers names, with the conversion to reverse. One table per
//! family; shared parts appear once. Tensors in no table keep their name, so that the model loader
//! reports them as unread.

use super::family::Family;

/// A rule for a tensor name of the file, without its layer prefix and its `.weight` or `.bias`
/// suffix.
pub(super) struct Rule {
    stem: &'static str,
    pub(super) name: &'static str,
    pub(super) conversion: Conversion,
}

/// What the converter did to a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conversion {
    /// Nothing.
    Same,
    /// A matrix, which loses its first dimension in some files if that is 1.
    Table,
    /// Rows of each query head, or key head, interleaved for another rotary layout.
    Query,
    Key,
    /// Fused QKV, which transformers stores as three tensors.
    SplitQkv,
    /// Fused QKV of Falcon and GPT-NeoX: all queries, all keys, all values. transformers
    /// interleaves them by group.
    GroupedQkv,
    /// Stored as 1 + w.
    PlusOne,
    /// One norm per head, stacked.
    HeadNorms,
    /// Stacked expert matrices, with the transformers name of the matrix in each expert.
    Experts(&'static str),
    /// Position embeddings without the leading rows that RoBERTa never uses.
    Positions,
    /// Only read for the configuration, from which transformers computes it.
    ConfigOnly,
}

/// Layer prefixes in the file and in transformers.
struct Layers {
    from: &'static str,
    to: &'static str,
    rules: &'static [&'static [Rule]],
}

const fn rule(stem: &'static str, name: &'static str, conversion: Conversion) -> Rule {
    Rule { stem, name, conversion }
}

const fn same(stem: &'static str, name: &'static str) -> Rule {
    rule(stem, name, Conversion::Same)
}

/// Most decoders: names as in Llama.
const ROOT: &[Rule] = &[
    same("token_embd", "model.embed_tokens"),
    same("output_norm", "model.norm"),
    same("output", "lm_head"),
    rule("cls.output", "score", Conversion::Table),
    rule("rope_freqs", "", Conversion::ConfigOnly),
    rule("rope_factors_long", "", Conversion::ConfigOnly),
    rule("rope_factors_short", "", Conversion::ConfigOnly),
];
const ATTENTION: &[Rule] = &[
    same("attn_norm", "input_layernorm"),
    same("attn_q", "self_attn.q_proj"),
    same("attn_k", "self_attn.k_proj"),
    same("attn_v", "self_attn.v_proj"),
    rule("attn_qkv", "self_attn", Conversion::SplitQkv),
    same("attn_output", "self_attn.o_proj"),
    same("attn_q_norm", "self_attn.q_norm"),
    same("attn_k_norm", "self_attn.k_norm"),
    rule("attn_rot_embd", "", Conversion::ConfigOnly),
];
const MLP: &[Rule] = &[
    same("ffn_norm", "post_attention_layernorm"),
    same("ffn_gate", "mlp.gate_proj"),
    same("ffn_up", "mlp.up_proj"),
    same("ffn_down", "mlp.down_proj"),
];
const ROTARY: &[Rule] =
    &[rule("attn_q", "self_attn.q_proj", Conversion::Query), rule("attn_k", "self_attn.k_proj", Conversion::Key)];
const MIXTRAL: &[Rule] = &[
    same("ffn_norm", "post_attention_layernorm"),
    same("ffn_gate_inp", "block_sparse_moe.gate"),
    rule("ffn_gate_exps", "block_sparse_moe.experts", Conversion::Experts("w1")),
    rule("ffn_down_exps", "block_sparse_moe.experts", Conversion::Experts("w2")),
    rule("ffn_up_exps", "block_sparse_moe.experts", Conversion::Experts("w3")),
];
const EXPERTS: &[Rule] = &[
    same("ffn_gate_inp", "mlp.gate"),
    rule("ffn_gate_exps", "mlp.experts", Conversion::Experts("gate_proj")),
    rule("ffn_down_exps", "mlp.experts", Conversion::Experts("down_proj")),
    rule("ffn_up_exps", "mlp.experts", Conversion::Experts("up_proj")),
];
const SHARED_EXPERT: &[Rule] = &[
    rule("ffn_gate_inp_shexp", "mlp.shared_expert_gate", Conversion::Table),
    same("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    same("ffn_down_shexp", "mlp.shared_expert.down_proj"),
    same("ffn_up_shexp", "mlp.shared_expert.up_proj"),
];
const STABLELM: &[Rule] = &[
    rule("attn_q_norm", "self_attn.q_layernorm.norms", Conversion::HeadNorms),
    rule("attn_k_norm", "self_attn.k_layernorm.norms", Conversion::HeadNorms),
];
const PHI_ROOT: &[Rule] = &[same("output_norm", "model.final_layernorm")];
const PHI: &[Rule] = &[same("attn_output", "self_attn.dense"), same("ffn_up", "mlp.fc1"), same("ffn_down", "mlp.fc2")];
const PHI3: &[Rule] = &[same("attn_qkv", "self_attn.qkv_proj"), same("ffn_up", "mlp.gate_up_proj")];
const GEMMA_ROOT: &[Rule] = &[rule("output_norm", "model.norm", Conversion::PlusOne)];
const GEMMA: &[Rule] = &[
    rule("attn_norm", "input_layernorm", Conversion::PlusOne),
    rule("ffn_norm", "post_attention_layernorm", Conversion::PlusOne),
    rule("attn_q_norm", "self_attn.q_norm", Conversion::PlusOne),
    rule("attn_k_norm", "self_attn.k_norm", Conversion::PlusOne),
];
/// Linear layers after the pooling, which the converter numbers by sentence-transformers' modules.
const GEMMA_DENSE: &[Rule] = &[same("dense_2", "dense.0.linear"), same("dense_3", "dense.1.linear")];
/// Since Gemma 2, norms before and after both attention and MLP.
const GEMMA2: &[Rule] = &[
    rule("post_attention_norm", "post_attention_layernorm", Conversion::PlusOne),
    rule("ffn_norm", "pre_feedforward_layernorm", Conversion::PlusOne),
    rule("post_ffw_norm", "post_feedforward_layernorm", Conversion::PlusOne),
];
const FALCON_ROOT: &[Rule] = &[
    same("token_embd", "transformer.word_embeddings"),
    same("output_norm", "transformer.ln_f"),
    same("output", "lm_head"),
];
const FALCON: &[Rule] = &[
    same("attn_norm", "input_layernorm"),
    rule("attn_qkv", "self_attention.query_key_value", Conversion::GroupedQkv),
    same("attn_output", "self_attention.dense"),
    same("ffn_up", "mlp.dense_h_to_4h"),
    same("ffn_down", "mlp.dense_4h_to_h"),
];
/// The larger models have two norms in parallel.
const FALCON_TWO: &[Rule] = &[same("attn_norm", "ln_mlp"), same("attn_norm_2", "ln_attn")];
const GPT2_ROOT: &[Rule] = &[
    same("token_embd", "transformer.wte"),
    same("position_embd", "transformer.wpe"),
    same("output_norm", "transformer.ln_f"),
    same("output", "lm_head"),
];
const GPT2: &[Rule] = &[
    same("attn_norm", "ln_1"),
    same("attn_qkv", "attn.c_attn"),
    same("attn_output", "attn.c_proj"),
    same("ffn_norm", "ln_2"),
    same("ffn_up", "mlp.c_fc"),
    same("ffn_down", "mlp.c_proj"),
];
const NEOX_ROOT: &[Rule] = &[
    same("token_embd", "gpt_neox.embed_in"),
    same("output_norm", "gpt_neox.final_layer_norm"),
    same("output", "embed_out"),
];
const NEOX: &[Rule] = &[
    same("attn_norm", "input_layernorm"),
    rule("attn_qkv", "attention.query_key_value", Conversion::GroupedQkv),
    same("attn_output", "attention.dense"),
    same("ffn_norm", "post_attention_layernorm"),
    same("ffn_up", "mlp.dense_h_to_4h"),
    same("ffn_down", "mlp.dense_4h_to_h"),
];
/// The names of GPT-2, with a gate.
const QWEN: &[Rule] = &[same("ffn_gate", "mlp.w2"), same("ffn_up", "mlp.w1")];
const T5_ROOT: &[Rule] = &[
    same("token_embd", "shared"),
    same("output", "lm_head"),
    same("enc.output_norm", "encoder.final_layer_norm"),
    same("dec.output_norm", "decoder.final_layer_norm"),
];
const T5_ATTENTION: &[Rule] = &[
    same("attn_norm", "layer.0.layer_norm"),
    same("attn_q", "layer.0.SelfAttention.q"),
    same("attn_k", "layer.0.SelfAttention.k"),
    same("attn_v", "layer.0.SelfAttention.v"),
    same("attn_o", "layer.0.SelfAttention.o"),
    rule("attn_rel_b", "layer.0.SelfAttention.relative_attention_bias", Conversion::Table),
];
const T5_ENCODER: &[Rule] = &[same("ffn_norm", "layer.1.layer_norm"), same("ffn_down", "layer.1.DenseReluDense.wo")];
const T5_DECODER: &[Rule] = &[
    same("cross_attn_norm", "layer.1.layer_norm"),
    same("cross_attn_q", "layer.1.EncDecAttention.q"),
    same("cross_attn_k", "layer.1.EncDecAttention.k"),
    same("cross_attn_v", "layer.1.EncDecAttention.v"),
    same("cross_attn_o", "layer.1.EncDecAttention.o"),
    rule("cross_attn_rel_b", "layer.1.EncDecAttention.relative_attention_bias", Conversion::Table),
    same("ffn_norm", "layer.2.layer_norm"),
    same("ffn_down", "layer.2.DenseReluDense.wo"),
];
const T5_PLAIN: [&[Rule]; 2] =
    [&[same("ffn_up", "layer.1.DenseReluDense.wi")], &[same("ffn_up", "layer.2.DenseReluDense.wi")]];
const T5_GATED: [&[Rule]; 2] = [
    &[same("ffn_gate", "layer.1.DenseReluDense.wi_0"), same("ffn_up", "layer.1.DenseReluDense.wi_1")],
    &[same("ffn_gate", "layer.2.DenseReluDense.wi_0"), same("ffn_up", "layer.2.DenseReluDense.wi_1")],
];
const BERT_ROOT: &[Rule] = &[
    rule("token_embd", "embeddings.word_embeddings", Conversion::Table),
    rule("position_embd", "embeddings.position_embeddings", Conversion::Table),
    rule("token_types", "embeddings.token_type_embeddings", Conversion::Table),
    same("token_embd_norm", "embeddings.LayerNorm"),
];
/// BERT has one layer on its pooler, which the converter drops; RoBERTa's head is complete.
const BERT_HEAD: &[Rule] =
    &[rule("cls", "classifier", Conversion::Table), rule("cls.output", "classifier", Conversion::Table)];
const ROBERTA_ROOT: &[Rule] = &[
    rule("position_embd", "embeddings.position_embeddings", Conversion::Positions),
    same("cls", "classifier.dense"),
    rule("cls.output", "classifier.out_proj", Conversion::Table),
];
const BERT: &[Rule] = &[
    same("attn_q", "attention.self.query"),
    same("attn_k", "attention.self.key"),
    same("attn_v", "attention.self.value"),
    same("attn_output", "attention.output.dense"),
    same("attn_output_norm", "attention.output.LayerNorm"),
    same("ffn_up", "intermediate.dense"),
    same("ffn_down", "output.dense"),
    same("layer_output_norm", "output.LayerNorm"),
];
const DISTILBERT_HEAD: &[Rule] = &[same("cls", "pre_classifier"), rule("cls.output", "classifier", Conversion::Table)];
const DISTILBERT: &[Rule] = &[
    same("attn_q", "attention.q_lin"),
    same("attn_k", "attention.k_lin"),
    same("attn_v", "attention.v_lin"),
    same("attn_output", "attention.out_lin"),
    same("attn_output_norm", "sa_layer_norm"),
    same("ffn_up", "ffn.lin1"),
    same("ffn_down", "ffn.lin2"),
    same("layer_output_norm", "output_layer_norm"),
];
const NOMIC_ROOT: &[Rule] = &[same("token_embd_norm", "emb_ln")];
const NOMIC: &[Rule] = &[
    same("attn_qkv", "attn.Wqkv"),
    same("attn_output", "attn.out_proj"),
    same("attn_output_norm", "norm1"),
    same("ffn_up", "mlp.fc11"),
    same("ffn_gate", "mlp.fc12"),
    same("ffn_down", "mlp.fc2"),
    same("layer_output_norm", "norm2"),
];

const NOMIC_MOE: &[Rule] = &[
    same("ffn_up", "mlp.fc1"),
    same("ffn_gate_inp", "mlp.router.layer"),
    rule("ffn_up_exps", "mlp.experts", Conversion::Experts("up")),
    rule("ffn_down_exps", "mlp.experts", Conversion::Experts("down")),
];
const MODERN_ROOT: &[Rule] = &[
    same("token_embd", "embeddings.tok_embeddings"),
    same("token_embd_norm", "embeddings.norm"),
    same("output_norm", "final_norm"),
    same("cls", "head.dense"),
    same("cls.norm", "head.norm"),
    rule("cls.output", "classifier", Conversion::Table),
];
const MODERN: &[Rule] = &[
    same("attn_norm", "attn_norm"),
    same("attn_qkv", "attn.Wqkv"),
    same("attn_output", "attn.Wo"),
    same("ffn_norm", "mlp_norm"),
    same("ffn_up", "mlp.Wi"),
    same("ffn_down", "mlp.Wo"),
];
const JINA2: &[Rule] =
    &[same("ffn_up", "mlp.gated_layers"), same("ffn_down", "mlp.wo"), same("layer_output_norm", "mlp.layernorm")];
const JINA2_CODE: &[Rule] = &[
    same("attn_q_norm", "attention.self.layer_norm_q"),
    same("attn_k_norm", "attention.self.layer_norm_k"),
    same("attn_norm_2", "layer_norm_1"),
    same("ffn_up", "mlp.up_gated_layer"),
    same("ffn_down", "mlp.down_layer"),
    same("layer_output_norm", "layer_norm_2"),
];
const JINA2_SPLIT: &[Rule] = &[same("ffn_gate", "mlp.gate"), same("ffn_up", "mlp.up")];
const JINA3: &[Rule] = &[
    same("attn_qkv", "mixer.Wqkv"),
    same("attn_output", "mixer.out_proj"),
    same("attn_output_norm", "norm1"),
    same("ffn_up", "mlp.fc1"),
    same("ffn_down", "mlp.fc2"),
    same("layer_output_norm", "norm2"),
];

/// The tables of a family: for tensors outside layers, and for layers. If several rules have the
/// same stem, the first applies.
fn tables(family: Family) -> (&'static [&'static [Rule]], &'static [Layers]) {
    const fn layers(to: &'static str, rules: &'static [&'static [Rule]]) -> Layers {
        Layers { from: "blk.", to, rules }
    }
    match family {
        Family::Llama => (&[ROOT], &const { [layers("model.layers", &[ROTARY, ATTENTION, MLP])] }),
        Family::Mixtral => (&[ROOT], &const { [layers("model.layers", &[ROTARY, ATTENTION, MIXTRAL])] }),
        Family::Qwen => (&[GPT2_ROOT], &const { [layers("transformer.h", &[QWEN, GPT2])] }),
        Family::Qwen2 | Family::Qwen3 => (&[ROOT], &const { [layers("model.layers", &[ATTENTION, MLP])] }),
        Family::Qwen2Moe => (&[ROOT], &const { [layers("model.layers", &[ATTENTION, MLP, EXPERTS, SHARED_EXPERT])] }),
        Family::Qwen3Moe => (&[ROOT], &const { [layers("model.layers", &[ATTENTION, MLP, EXPERTS])] }),
        Family::StableLm => (&[ROOT], &const { [layers("model.layers", &[STABLELM, ATTENTION, MLP])] }),
        Family::Phi => (&[PHI_ROOT, ROOT], &const { [layers("model.layers", &[PHI, ATTENTION])] }),
        Family::Phi3 => (&[ROOT], &const { [layers("model.layers", &[PHI3, ATTENTION, MLP])] }),
        Family::Gemma => (&[GEMMA_ROOT, ROOT], &const { [layers("model.layers", &[GEMMA, ATTENTION, MLP])] }),
        Family::Gemma2 | Family::Gemma3 => {
            (&[GEMMA_ROOT, ROOT], &const { [layers("model.layers", &[GEMMA2, GEMMA, ATTENTION, MLP])] })
        }
        Family::GemmaEmbedding => {
            (&[GEMMA_DENSE, GEMMA_ROOT, ROOT], &const { [layers("model.layers", &[GEMMA2, GEMMA, ATTENTION, MLP])] })
        }
        Family::Falcon { norms: 2 } => (&[FALCON_ROOT], &const { [layers("transformer.h", &[FALCON_TWO, FALCON])] }),
        Family::Falcon { .. } => (&[FALCON_ROOT], &const { [layers("transformer.h", &[FALCON])] }),
        Family::Gpt2 => (&[GPT2_ROOT], &const { [layers("transformer.h", &[GPT2])] }),
        Family::GptNeoX => (&[NEOX_ROOT], &const { [layers("gpt_neox.layers", &[NEOX])] }),
        Family::T5 { gated: false, .. } => (
            &[T5_ROOT],
            &const {
                [
                    Layers { from: "enc.blk.", to: "encoder.block", rules: &[T5_ATTENTION, T5_ENCODER, T5_PLAIN[0]] },
                    Layers { from: "dec.blk.", to: "decoder.block", rules: &[T5_ATTENTION, T5_DECODER, T5_PLAIN[1]] },
                ]
            },
        ),
        Family::T5 { gated: true, .. } => (
            &[T5_ROOT],
            &const {
                [
                    Layers { from: "enc.blk.", to: "encoder.block", rules: &[T5_ATTENTION, T5_ENCODER, T5_GATED[0]] },
                    Layers { from: "dec.blk.", to: "decoder.block", rules: &[T5_ATTENTION, T5_DECODER, T5_GATED[1]] },
                ]
            },
        ),
        Family::Bert => (&[BERT_HEAD, BERT_ROOT], &const { [layers("encoder.layer", &[BERT])] }),
        Family::Roberta | Family::XlmRoberta => {
            (&[ROBERTA_ROOT, BERT_ROOT], &const { [layers("encoder.layer", &[BERT])] })
        }
        Family::DistilBert => (&[DISTILBERT_HEAD, BERT_ROOT], &const { [layers("transformer.layer", &[DISTILBERT])] }),
        Family::NomicBert => (&[NOMIC_ROOT, BERT_ROOT], &const { [layers("encoder.layers", &[NOMIC])] }),
        Family::NomicBertMoe => (&[NOMIC_ROOT, BERT_ROOT], &const { [layers("encoder.layers", &[NOMIC_MOE, NOMIC])] }),
        Family::ModernBert => (&[MODERN_ROOT], &const { [layers("layers", &[MODERN])] }),
        Family::JinaBertV2 { code: false, split: false } => {
            (&[BERT_ROOT], &const { [layers("encoder.layer", &[JINA2, BERT])] })
        }
        Family::JinaBertV2 { code: false, split: true } => {
            (&[BERT_ROOT], &const { [layers("encoder.layer", &[JINA2_SPLIT, JINA2, BERT])] })
        }
        Family::JinaBertV2 { code: true, split: false } => {
            (&[BERT_ROOT], &const { [layers("encoder.layer", &[JINA2_CODE, BERT])] })
        }
        Family::JinaBertV2 { code: true, split: true } => {
            (&[BERT_ROOT], &const { [layers("encoder.layer", &[JINA2_SPLIT, JINA2_CODE, BERT])] })
        }
        Family::JinaBertV3 => (&[NOMIC_ROOT, BERT_ROOT], &const { [layers("encoder.layers", &[JINA3])] }),
    }
}

/// A tensor name of the file with its rule.
pub(super) struct KnownTensor {
    /// `model.layers.3.` or nothing.
    pub(super) before: String,
    pub(super) rule: &'static Rule,
    /// `weight` or `bias`.
    pub(super) ending: &'static str,
    /// The expert, if each has a tensor of its own, as in files before April 2024.
    pub(super) expert: Option<usize>,
}

/// Looks up the tensor `name` in the tables of `family`.
pub(super) fn find(family: Family, name: &str) -> Option<KnownTensor> {
    let ending = if name.ends_with(".weight") { "weight" } else { "bias" };
    let stem = name.strip_suffix(ending)?.strip_suffix('.')?;
    let (roots, layers) = tables(family);
    let rule = |tables: &'static [&'static [Rule]], stem: &str| {
        tables.iter().copied().flatten().find(|rule| rule.stem == stem)
    };
    if let Some(rule) = rule(roots, stem) {
        return Some(KnownTensor { before: String::new(), rule, ending, expert: None });
    }
    for Layers { from, to, rules } in layers {
        let Some((layer, stem)) = stem.strip_prefix(from).and_then(|rest| rest.split_once('.')) else { continue };
        let before = format!("{to}.{}.", number(layer)?);
        if let Some(rule) = rule(rules, stem) {
            return Some(KnownTensor { before, rule, ending, expert: None });
        }
        let (stem, expert) = stem.split_once('.')?;
        let rule = rule(rules, &format!("{stem}_exps"))?;
        return Some(KnownTensor { before, rule, ending, expert: Some(number(expert)?) });
    }
    None
}

/// A decimal number of at most five digits without leading zeros, so that it has only one spelling.
fn number(text: &str) -> Option<usize> {
    let digits = (1..=5).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| digits && (text == "0" || !text.starts_with('0')))
}
