//! Writes small GGUF files, right or wrong.

/// A file under construction.
#[derive(Clone)]
pub(super) struct Writer {
    pub(super) version: u32,
    /// Said instead of the truth, where that is to be tested.
    pub(super) counts: Option<(u64, u64)>,
    pub(super) alignment: usize,
    pub(super) keys: Vec<Vec<u8>>,
    pub(super) tensors: Vec<Tensor>,
}

#[derive(Clone)]
pub(super) struct Tensor {
    pub(super) name: String,
    /// As the file has them: the row's first.
    pub(super) dims: Vec<u64>,
    pub(super) kind: u32,
    /// Said instead of where it is.
    pub(super) offset: Option<u64>,
    pub(super) bytes: Vec<u8>,
}

impl Writer {
    /// Of that architecture, with nothing in it.
    pub(super) fn new(architecture: &str) -> Writer {
        let empty = Writer { version: 3, counts: None, alignment: 32, keys: Vec::new(), tensors: Vec::new() };
        empty.str("general.architecture", architecture)
    }

    /// A Llama of 1 layer, 2 heads of 4 over 1 key's, 32 wide.
    pub(super) fn llama() -> Writer {
        Writer::new("llama")
            .u32("llama.block_count", 1)
            .u32("llama.context_length", 64)
            .u32("llama.embedding_length", 32)
            .u32("llama.feed_forward_length", 16)
            .u32("llama.attention.head_count", 2)
            .u32("llama.attention.head_count_kv", 1)
            .u32("llama.attention.key_length", 4)
            .f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
            .str("tokenizer.ggml.model", "llama")
            .strs("tokenizer.ggml.tokens", &["<unk>", "a", "b"])
            .f32s("tokenizer.ggml.scores", &[0.0, -1.0, -2.0])
            .i32s("tokenizer.ggml.token_type", &[2, 1, 1])
            .u32("tokenizer.ggml.bos_token_id", 1)
            .str("tokenizer.chat_template", "{{ messages }}")
            .tensor("token_embd.weight", &[3, 32])
            .tensor("output_norm.weight", &[32])
            .tensor("blk.0.attn_q.weight", &[8, 32])
            .tensor("blk.0.attn_k.weight", &[4, 32])
    }

    fn key(mut self, name: &str, kind: u32, value: &[u8]) -> Writer {
        self.keys.push([&text(name)[..], &kind.to_le_bytes(), value].concat());
        self
    }

    pub(super) fn str(self, name: &str, value: &str) -> Writer {
        self.key(name, 8, &text(value))
    }

    pub(super) fn u32(self, name: &str, value: u32) -> Writer {
        self.key(name, 4, &value.to_le_bytes())
    }

    pub(super) fn f32(self, name: &str, value: f32) -> Writer {
        self.key(name, 6, &value.to_le_bytes())
    }

    pub(super) fn bool(self, name: &str, value: u8) -> Writer {
        self.key(name, 7, &[value])
    }

    pub(super) fn strs(self, name: &str, values: &[&str]) -> Writer {
        let items: Vec<u8> = values.iter().flat_map(|value| text(value)).collect();
        self.array(name, 8, values.len() as u64, &items)
    }

    pub(super) fn f32s(self, name: &str, values: &[f32]) -> Writer {
        let items: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.array(name, 6, values.len() as u64, &items)
    }

    pub(super) fn i32s(self, name: &str, values: &[i32]) -> Writer {
        let items: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.array(name, 5, values.len() as u64, &items)
    }

    /// An array that says it has `count` items.
    pub(super) fn array(self, name: &str, item: u32, count: u64, items: &[u8]) -> Writer {
        self.key(name, 9, &[&item.to_le_bytes()[..], &count.to_le_bytes(), items].concat())
    }

    /// A value of any type, as bytes.
    pub(super) fn raw(self, name: &str, kind: u32, value: &[u8]) -> Writer {
        self.key(name, kind, value)
    }

    /// F32, row-major, counting up from 0.
    pub(super) fn tensor(self, name: &str, dims: &[u64]) -> Writer {
        let values: Vec<f32> = (0..dims.iter().product::<u64>()).map(|n| n as f32).collect();
        self.values(name, dims, &values)
    }

    pub(super) fn values(self, name: &str, dims: &[u64], values: &[f32]) -> Writer {
        self.blocks(name, dims, 0, values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    /// Of any format.
    pub(super) fn blocks(mut self, name: &str, dims: &[u64], kind: u32, bytes: Vec<u8>) -> Writer {
        let dims = dims.iter().rev().copied().collect();
        self.tensors.push(Tensor { name: name.into(), dims, kind, offset: None, bytes });
        self
    }

    /// Data and tensors begin at multiples of it, and the file says so.
    pub(super) fn aligned(mut self, alignment: u32) -> Writer {
        self.alignment = alignment as usize;
        self.u32("general.alignment", alignment)
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let (tensors, keys) = self.counts.unwrap_or((self.tensors.len() as u64, self.keys.len() as u64));
        let mut out = [&b"GGUF"[..], &self.version.to_le_bytes(), &tensors.to_le_bytes(), &keys.to_le_bytes()].concat();
        out.extend(self.keys.concat());
        let mut data: Vec<u8> = Vec::new();
        let align = |bytes: &mut Vec<u8>| bytes.resize(bytes.len().next_multiple_of(self.alignment), 0);
        for Tensor { name, dims, kind, offset, bytes } in &self.tensors {
            out.extend(text(name));
            out.extend((dims.len() as u32).to_le_bytes());
            out.extend(dims.iter().flat_map(|d| d.to_le_bytes()));
            out.extend(kind.to_le_bytes());
            out.extend(offset.unwrap_or(data.len() as u64).to_le_bytes());
            data.extend(bytes);
            align(&mut data);
        }
        align(&mut out);
        out.extend(data);
        out
    }
}

fn text(value: &str) -> Vec<u8> {
    [&(value.len() as u64).to_le_bytes()[..], value.as_bytes()].concat()
}
