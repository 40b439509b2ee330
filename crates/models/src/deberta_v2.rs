//! DeBERTa v2 and v3 (He et al. 2021, arXiv:2111.09543): distances in logarithmic buckets, positions projected by the weights of
//! the content, and in the largest models a convolution beside the first block.

use crate::block::through;
use crate::config::{activation, head_size, parse};
use crate::deberta::{Config, Embeddings, Layer, Relative, SelfAttention, WORDS};
use crate::head::root;
use crate::{Batch, Encoder, Error, Limits, Result, Watch};
use sconce_ops::{Bias, LayerNorm, Linear, Tensor, Weights, unfold};
use serde::Deserialize;
use serde_json::Value;

/// What the second version adds.
#[derive(Deserialize)]
struct More {
    #[serde(default)]
    position_buckets: i64,
    #[serde(default)]
    share_att_key: bool,
    norm_rel_ebd: Option<String>,
    attention_head_size: Option<usize>,
    #[serde(default)]
    conv_kernel_size: usize,
    conv_act: Option<String>,
    conv_groups: Option<usize>,
    #[serde(default)]
    z_steps: usize,
}

pub(crate) use crate::deberta::head;

pub(crate) fn encoder(config: &Value, w: &Weights) -> Result<Box<dyn Encoder>> {
    Ok(Box::new(DebertaV2::load(config, w)?))
}

struct DebertaV2 {
    embeddings: Embeddings,
    layers: Vec<Layer>,
    convolution: Option<Convolution>,
    hidden_size: usize,
    limits: Limits,
}

impl DebertaV2 {
    fn load(config: &Value, w: &Weights) -> Result<DebertaV2> {
        let (c, more): (Config, More) = (parse(config)?, parse(config)?);
        let size = head_size(c.hidden_size, c.num_attention_heads)?;
        if more.attention_head_size.is_some_and(|own| own != size) {
            let what = "an attention_head_size other than hidden_size / num_attention_heads is not supported";
            return Err(Error::Config(what.into()));
        }
        if more.z_steps > 1 {
            return Err(Error::Config("z_steps (the last layer several times) is not supported".into()));
        }
        let w = root(w, "deberta", WORDS)?;
        let relative = c.reach().map(|reach| relative_of(&w.sub("encoder"), &c, &more, reach)).transpose()?;
        let layer = |i| {
            let w = w.sub("encoder.layer").sub(i);
            Layer::load(&w, &c, attention_of(&w.sub("attention.self"), &c, more.share_att_key, relative.as_ref())?)
        };
        let convolution =
            (more.conv_kernel_size > 0).then(|| Convolution::load(&w.sub("encoder.conv"), &c, &more)).transpose()?;
        Ok(DebertaV2 {
            embeddings: Embeddings::load(&w.sub("embeddings"), &c)?,
            layers: (0..c.num_hidden_layers).map(layer).collect::<Result<_>>()?,
            convolution,
            hidden_size: c.hidden_size,
            limits: c.limits(),
        })
    }
}

impl Encoder for DebertaV2 {
    fn forward(&self, batch: &Batch, watch: Watch<'_>) -> Result<Tensor> {
        through(self.embeddings.forward(batch)?, &self.layers, watch, |i, layer, x| {
            let y = layer.forward(x, batch)?;
            match self.convolution.as_ref().filter(|_| i == 0) {
                Some(convolution) => convolution.forward(x, &y, batch),
                None => Ok(y),
            }
        })
    }

    fn hidden_size(&self) -> usize {
        self.hidden_size
    }

    fn limits(&self) -> Limits {
        self.limits
    }
}

/// Relative positions, in buckets where the model has them and normalised where it says so.
fn relative_of(w: &Weights, c: &Config, more: &More, reach: usize) -> Result<Relative> {
    let buckets = usize::try_from(more.position_buckets).ok().filter(|n| *n > 0);
    if let Some(buckets) = buckets.filter(|n| *n < 4 || n / 2 + 1 >= reach) {
        let what =
            format!("position_buckets {buckets} for relative positions up to {reach}; at least 4 and fewer make sense");
        return Err(Error::Config(what));
    }
    let mut relative = Relative::load(w, c, buckets.unwrap_or(reach))?;
    relative.far = buckets.map(|_| reach);
    match more.norm_rel_ebd.as_deref().unwrap_or("none").trim().to_lowercase().as_str() {
        "none" => {}
        "layer_norm" => {
            let norm = LayerNorm::load(&w.sub("LayerNorm"), c.hidden_size, c.layer_norm_eps, true)?;
            relative.rows = norm.forward(&relative.rows)?;
        }
        other => {
            return Err(Error::Config(format!("norm_rel_ebd `{other}` is not supported; none and layer_norm are")));
        }
    }
    Ok(relative)
}

/// Query, key and value projected apart; positions by the same weights (`shared`) or by their own.
fn attention_of(w: &Weights, c: &Config, shared: bool, relative: Option<&Relative>) -> Result<SelfAttention> {
    let (hidden, heads) = (c.hidden_size, c.num_attention_heads);
    let names = if shared { ["key_proj", "query_proj"] } else { ["pos_key_proj", "pos_query_proj"] };
    let (c2p, p2c) = c.terms()?;
    let bias = relative.map_or(Ok(Bias::None), |relative| {
        let project = |wanted: bool, name| wanted.then(|| Linear::load(&w.sub(name), hidden, hidden, true)).transpose();
        relative.bias(project(c2p, names[0])?, project(p2c, names[1])?, heads)
    })?;
    Ok(SelfAttention {
        qkv: Linear::stacked(&["query_proj", "key_proj", "value_proj"].map(|name| w.sub(name)), hidden, hidden, true)?,
        by_head: false,
        heads,
        size: head_size(hidden, heads)?,
        scale: c.scale()?,
        bias,
    })
}

/// norm(y + act(conv(x))), x what the first block read and y what it gave.
struct Convolution {
    conv: Linear,
    norm: LayerNorm,
    width: usize,
}

impl Convolution {
    fn load(w: &Weights, c: &Config, more: &More) -> Result<Convolution> {
        let width = more.conv_kernel_size;
        if more.conv_groups.is_some_and(|n| n != 1) || width.is_multiple_of(2) {
            let what = "conv_groups other than 1 and an even conv_kernel_size are not supported";
            return Err(Error::Config(what.into()));
        }
        let conv = Linear::shaped(&[(w.sub("conv"), "weight")], &[c.hidden_size, c.hidden_size, width])?
            .with_bias(w.sub("conv").tensor("bias", &[c.hidden_size])?)?
            .with(activation(more.conv_act.as_deref().unwrap_or("tanh"))?);
        Ok(Convolution {
            conv,
            norm: LayerNorm::load(&w.sub("LayerNorm"), c.hidden_size, c.layer_norm_eps, true)?,
            width,
        })
    }

    fn forward(&self, x: &Tensor, y: &Tensor, b: &Batch) -> Result<Tensor> {
        let out = self.conv.forward(&unfold(x, &b.segments, self.width)?)?;
        Ok(self.norm.forward_residual(&out, y)?)
    }
}
