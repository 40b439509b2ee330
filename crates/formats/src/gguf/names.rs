//! What transformers calls each tensor, and what llama.cpp's converter did to it. One table a family; what several share
//! stands once. Tensors that no table knows keep the name they have, so that whoever loads the model sees them unread.

use super::family::Family;

/// Stems as the file has them, without the layer in front and `.weight` or `.bias` behind.
pub(super) struct Rule {
    stem: &'static str,
    pub(super) name: &'static str,
    pub(super) how: How,
}

/// What must be undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// Nothing.
    Same,
    /// A table, which loses its first dimension in some files when that is 1.
    Table,
    /// Rows of each query's, or key's, head interleaved for another way to rotate.
    Query,
    Key,
    /// Queries, keys and values in one, which transformers keeps apart.
    Apart,
    /// Falcon's: all queries, all keys, all values; transformers keeps each group's together.
    Groups,
    /// Stored as 1 + w.
    Norm,
    /// One norm a head, stacked.
    Heads,
    /// A stack of experts' matrices, with what transformers calls this one in each.
    Experts(&'static str),
    /// A table of positions without the rows that RoBERTa never uses.
    Positions,
    /// Read by the configuration: it follows from that in transformers.
    Aside,
}

/// Layers of the file, and where transformers has them.
struct Layers {
    from: &'static str,
    to: &'static str,
    rules: &'static [&'static [Rule]],
}

const fn rule(stem: &'static str, name: &'static str, how: How) -> Rule {
    Rule { stem, name, how }
}

const fn same(stem: &'static str, name: &'static str) -> Rule {
    rule(stem, name, How::Same)
}

/// Most decoders': names as in Llama.
const ROOT: &[Rule] = &[
    same("token_embd", "model.embed_tokens"),
    same("output_norm", "model.norm"),
    same("output", "lm_head"),
    rule("cls.output", "score", How::Table),
    rule("rope_freqs", "", How::Aside),
    rule("rope_factors_long", "", How::Aside),
    rule("rope_factors_short", "", How::Aside),
];
const ATTENTION: &[Rule] = &[
    same("attn_norm", "input_layernorm"),
    same("attn_q", "self_attn.q_proj"),
    same("attn_k", "self_attn.k_proj"),
    same("attn_v", "self_attn.v_proj"),
    rule("attn_qkv", "self_attn", How::Apart),
    same("attn_output", "self_attn.o_proj"),
    same("attn_q_norm", "self_attn.q_norm"),
    same("attn_k_norm", "self_attn.k_norm"),
    rule("attn_rot_embd", "", How::Aside),
];
const MLP: &[Rule] = &[
    same("ffn_norm", "post_attention_layernorm"),
    same("ffn_gate", "mlp.gate_proj"),
    same("ffn_up", "mlp.up_proj"),
    same("ffn_down", "mlp.down_proj"),
];
const ROTARY: &[Rule] = &[rule("attn_q", "self_attn.q_proj", How::Query), rule("attn_k", "self_attn.k_proj", How::Key)];
const MIXTRAL: &[Rule] = &[
    same("ffn_norm", "post_attention_layernorm"),
    same("ffn_gate_inp", "block_sparse_moe.gate"),
    rule("ffn_gate_exps", "block_sparse_moe.experts", How::Experts("w1")),
    rule("ffn_down_exps", "block_sparse_moe.experts", How::Experts("w2")),
    rule("ffn_up_exps", "block_sparse_moe.experts", How::Experts("w3")),
];
const EXPERTS: &[Rule] = &[
    same("ffn_gate_inp", "mlp.gate"),
    rule("ffn_gate_exps", "mlp.experts", How::Experts("gate_proj")),
    rule("ffn_down_exps", "mlp.experts", How::Experts("down_proj")),
    rule("ffn_up_exps", "mlp.experts", How::Experts("up_proj")),
];
const STABLELM: &[Rule] = &[
    rule("attn_q_norm", "self_attn.q_layernorm.norms", How::Heads),
    rule("attn_k_norm", "self_attn.k_layernorm.norms", How::Heads),
];
const PHI_ROOT: &[Rule] = &[same("output_norm", "model.final_layernorm")];
const PHI: &[Rule] = &[same("attn_output", "self_attn.dense"), same("ffn_up", "mlp.fc1"), same("ffn_down", "mlp.fc2")];
const PHI3: &[Rule] = &[same("attn_qkv", "self_attn.qkv_proj"), same("ffn_up", "mlp.gate_up_proj")];
const GEMMA_ROOT: &[Rule] = &[rule("output_norm", "model.norm", How::Norm)];
const GEMMA: &[Rule] = &[
    rule("attn_norm", "input_layernorm", How::Norm),
    rule("ffn_norm", "post_attention_layernorm", How::Norm),
    rule("attn_q_norm", "self_attn.q_norm", How::Norm),
    rule("attn_k_norm", "self_attn.k_norm", How::Norm),
];
/// From the second generation on there is a norm on either side of both.
const GEMMA2: &[Rule] = &[
    rule("post_attention_norm", "post_attention_layernorm", How::Norm),
    rule("ffn_norm", "pre_feedforward_layernorm", How::Norm),
    rule("post_ffw_norm", "post_feedforward_layernorm", How::Norm),
];
const FALCON_ROOT: &[Rule] = &[
    same("token_embd", "transformer.word_embeddings"),
    same("output_norm", "transformer.ln_f"),
    same("output", "lm_head"),
];
const FALCON: &[Rule] = &[
    same("attn_norm", "input_layernorm"),
    rule("attn_qkv", "self_attention.query_key_value", How::Groups),
    same("attn_output", "self_attention.dense"),
    same("ffn_up", "mlp.dense_h_to_4h"),
    same("ffn_down", "mlp.dense_4h_to_h"),
];
/// The larger ones have two norms in parallel.
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
    rule("attn_rel_b", "layer.0.SelfAttention.relative_attention_bias", How::Table),
];
const T5_ENCODER: &[Rule] = &[same("ffn_norm", "layer.1.layer_norm"), same("ffn_down", "layer.1.DenseReluDense.wo")];
const T5_DECODER: &[Rule] = &[
    same("cross_attn_norm", "layer.1.layer_norm"),
    same("cross_attn_q", "layer.1.EncDecAttention.q"),
    same("cross_attn_k", "layer.1.EncDecAttention.k"),
    same("cross_attn_v", "layer.1.EncDecAttention.v"),
    same("cross_attn_o", "layer.1.EncDecAttention.o"),
    rule("cross_attn_rel_b", "layer.1.EncDecAttention.relative_attention_bias", How::Table),
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
    rule("token_embd", "embeddings.word_embeddings", How::Table),
    rule("position_embd", "embeddings.position_embeddings", How::Table),
    rule("token_types", "embeddings.token_type_embeddings", How::Table),
    same("token_embd_norm", "embeddings.LayerNorm"),
];
/// BERT has one layer on its pooler, which the converter leaves out; RoBERTa's head is whole.
const BERT_HEAD: &[Rule] = &[rule("cls", "classifier", How::Table), rule("cls.output", "classifier", How::Table)];
const ROBERTA_ROOT: &[Rule] = &[
    rule("position_embd", "embeddings.position_embeddings", How::Positions),
    same("cls", "classifier.dense"),
    rule("cls.output", "classifier.out_proj", How::Table),
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
const DISTILBERT_HEAD: &[Rule] = &[same("cls", "pre_classifier"), rule("cls.output", "classifier", How::Table)];
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

/// The tables of a family: those of the roots, and those of its layers. The first rule of a stem counts.
fn tables(family: Family) -> (&'static [&'static [Rule]], &'static [Layers]) {
    const fn layers(to: &'static str, rules: &'static [&'static [Rule]]) -> Layers {
        Layers { from: "blk.", to, rules }
    }
    match family {
        Family::Llama => (&[ROOT], &const { [layers("model.layers", &[ROTARY, ATTENTION, MLP])] }),
        Family::Mixtral => (&[ROOT], &const { [layers("model.layers", &[ROTARY, ATTENTION, MIXTRAL])] }),
        Family::Qwen2 | Family::Qwen3 => (&[ROOT], &const { [layers("model.layers", &[ATTENTION, MLP])] }),
        Family::Qwen3Moe => (&[ROOT], &const { [layers("model.layers", &[ATTENTION, MLP, EXPERTS])] }),
        Family::StableLm => (&[ROOT], &const { [layers("model.layers", &[STABLELM, ATTENTION, MLP])] }),
        Family::Phi => (&[PHI_ROOT, ROOT], &const { [layers("model.layers", &[PHI, ATTENTION])] }),
        Family::Phi3 => (&[ROOT], &const { [layers("model.layers", &[PHI3, ATTENTION, MLP])] }),
        Family::Gemma => (&[GEMMA_ROOT, ROOT], &const { [layers("model.layers", &[GEMMA, ATTENTION, MLP])] }),
        Family::Gemma2 | Family::Gemma3 => {
            (&[GEMMA_ROOT, ROOT], &const { [layers("model.layers", &[GEMMA2, GEMMA, ATTENTION, MLP])] })
        }
        Family::Falcon { norms: 2 } => (&[FALCON_ROOT], &const { [layers("transformer.h", &[FALCON_TWO, FALCON])] }),
        Family::Falcon { .. } => (&[FALCON_ROOT], &const { [layers("transformer.h", &[FALCON])] }),
        Family::Gpt2 => (&[GPT2_ROOT], &const { [layers("transformer.h", &[GPT2])] }),
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
    }
}

/// A tensor of the file, as a table knows it.
pub(super) struct Known {
    /// `model.layers.3.` or nothing.
    pub(super) before: String,
    pub(super) rule: &'static Rule,
    /// `weight` or `bias`.
    pub(super) ending: &'static str,
    /// The expert, where each has a tensor of its own, as before April 2024.
    pub(super) expert: Option<usize>,
}

/// What the tensor `name` is, if a table of `family` has it.
pub(super) fn find(family: Family, name: &str) -> Option<Known> {
    let ending = if name.ends_with(".weight") { "weight" } else { "bias" };
    let stem = name.strip_suffix(ending)?.strip_suffix('.')?;
    let (roots, layers) = tables(family);
    let rule = |tables: &'static [&'static [Rule]], stem: &str| {
        tables.iter().copied().flatten().find(|rule| rule.stem == stem)
    };
    if let Some(rule) = rule(roots, stem) {
        return Some(Known { before: String::new(), rule, ending, expert: None });
    }
    for Layers { from, to, rules } in layers {
        let Some((layer, stem)) = stem.strip_prefix(from).and_then(|rest| rest.split_once('.')) else { continue };
        let before = format!("{to}.{}.", number(layer)?);
        if let Some(rule) = rule(rules, stem) {
            return Some(Known { before, rule, ending, expert: None });
        }
        let (stem, expert) = stem.split_once('.')?;
        let rule = rule(rules, &format!("{stem}_exps"))?;
        return Some(Known { before, rule, ending, expert: Some(number(expert)?) });
    }
    None
}

/// A number as a name has it: digits alone, none too many, so that no two spellings mean the same.
fn number(text: &str) -> Option<usize> {
    let digits = (1..=5).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| digits && (text == "0" || !text.starts_with('0')))
}
