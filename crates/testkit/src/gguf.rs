//! Writes small GGUF files, valid or deliberately invalid.

/// A GGUF file under construction.
#[derive(Clone)]
pub struct GgufWriter {
    /// The version of the format.
    pub version: u32,
    /// Written in place of the true counts of tensors and metadata keys, to test a reader's checks.
    pub counts: Option<(u64, u64)>,
    /// The alignment of the tensor data.
    pub alignment: usize,
    /// Encoded metadata entries.
    pub keys: Vec<Vec<u8>>,
    /// Tensors.
    pub tensors: Vec<GgufTensor>,
}

/// A tensor of a GGUF file.
#[derive(Clone)]
pub struct GgufTensor {
    /// Its name.
    pub name: String,
    /// Dimensions in the file's order, the innermost first.
    pub dims: Vec<u64>,
    /// ggml's number of the tensor type.
    pub kind: u32,
    /// Written in place of the true offset.
    pub offset: Option<u64>,
    /// Its data.
    pub bytes: Vec<u8>,
}

impl GgufWriter {
    /// An empty file of that architecture.
    pub fn new(architecture: &str) -> GgufWriter {
        let empty = GgufWriter { version: 3, counts: None, alignment: 32, keys: Vec::new(), tensors: Vec::new() };
        empty.str("general.architecture", architecture)
    }

    /// A Llama of 1 layer with a hidden size of 32, and 2 query heads of size 4 over 1 key-value
    /// head.
    pub fn llama() -> GgufWriter {
        GgufWriter::new("llama")
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

    /// A T5 of 1 encoder and 1 decoder layer with a hidden size of 32 and 2 heads of size 4. Its
    /// weights are small, so that it generates text, if not a sensible one.
    pub fn t5() -> GgufWriter {
        let attention = ["attn_q", "attn_k", "attn_v"].map(|name| (name, [8, 32]));
        let mut writer = GgufWriter::new("t5")
            .u32("t5.block_count", 1)
            .u32("t5.context_length", 64)
            .u32("t5.embedding_length", 32)
            .u32("t5.feed_forward_length", 16)
            .u32("t5.attention.head_count", 2)
            .u32("t5.attention.key_length", 4)
            .u32("t5.attention.value_length", 4)
            .u32("t5.attention.relative_buckets_count", 8)
            .f32("t5.attention.layer_norm_rms_epsilon", 1e-6)
            .u32("t5.decoder_start_token_id", 0)
            .str("tokenizer.ggml.model", "t5")
            .strs("tokenizer.ggml.tokens", &["<pad>", "</s>", "<unk>", "\u{2581}", "a", "b", "\u{2581}a"])
            .f32s("tokenizer.ggml.scores", &[0.0, 0.0, 0.0, -2.0, -3.0, -3.0, -1.0])
            .i32s("tokenizer.ggml.token_type", &[3, 3, 2, 1, 1, 1, 1])
            .u32("tokenizer.ggml.eos_token_id", 1)
            .u32("tokenizer.ggml.padding_token_id", 0)
            .u32("tokenizer.ggml.unknown_token_id", 2)
            .small("token_embd.weight", &[7, 32])
            .small("output.weight", &[7, 32]);
        for side in ["enc", "dec"] {
            writer = writer.ones(&format!("{side}.output_norm.weight"), 32);
            let layer = |name: &str| format!("{side}.blk.0.{name}.weight");
            for kind in if side == "enc" { &[""][..] } else { &["", "cross_"] } {
                for (name, dims) in attention {
                    writer = writer.small(&layer(&format!("{kind}{name}")), &dims);
                }
                writer = writer.small(&layer(&format!("{kind}attn_o")), &[32, 8]);
                writer = writer.ones(&layer(&format!("{kind}attn_norm")), 32);
            }
            writer = writer.small(&layer("attn_rel_b"), &[8, 2]);
            writer = writer.small(&layer("ffn_up"), &[16, 32]).small(&layer("ffn_down"), &[32, 16]);
            writer = writer.ones(&layer("ffn_norm"), 32);
        }
        writer
    }

    fn ones(self, name: &str, n: u64) -> GgufWriter {
        self.values(name, &[n], &vec![1.0; n as usize])
    }

    /// Small values of both signs.
    fn small(self, name: &str, dims: &[u64]) -> GgufWriter {
        let n = dims.iter().product::<u64>();
        let values: Vec<f32> = (0..n).map(|i| ((i * 37 + name.len() as u64) % 41) as f32 / 100.0 - 0.2).collect();
        self.values(name, dims, &values)
    }

    fn key(mut self, name: &str, kind: u32, value: &[u8]) -> GgufWriter {
        self.keys.push([&text(name)[..], &kind.to_le_bytes(), value].concat());
        self
    }

    /// A string.
    pub fn str(self, name: &str, value: &str) -> GgufWriter {
        self.key(name, 8, &text(value))
    }

    /// A 32-bit unsigned integer.
    pub fn u32(self, name: &str, value: u32) -> GgufWriter {
        self.key(name, 4, &value.to_le_bytes())
    }

    /// A 32-bit float.
    pub fn f32(self, name: &str, value: f32) -> GgufWriter {
        self.key(name, 6, &value.to_le_bytes())
    }

    /// A bool, as its byte.
    pub fn bool(self, name: &str, value: u8) -> GgufWriter {
        self.key(name, 7, &[value])
    }

    /// An array of strings.
    pub fn strs(self, name: &str, values: &[&str]) -> GgufWriter {
        let items: Vec<u8> = values.iter().flat_map(|value| text(value)).collect();
        self.array(name, 8, values.len() as u64, &items)
    }

    /// An array of 32-bit floats.
    pub fn f32s(self, name: &str, values: &[f32]) -> GgufWriter {
        let items: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.array(name, 6, values.len() as u64, &items)
    }

    /// An array of 32-bit signed integers.
    pub fn i32s(self, name: &str, values: &[i32]) -> GgufWriter {
        let items: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.array(name, 5, values.len() as u64, &items)
    }

    /// An array that declares `count` items.
    pub fn array(self, name: &str, item: u32, count: u64, items: &[u8]) -> GgufWriter {
        self.key(name, 9, &[&item.to_le_bytes()[..], &count.to_le_bytes(), items].concat())
    }

    /// A value of any type, already encoded.
    pub fn raw(self, name: &str, kind: u32, value: &[u8]) -> GgufWriter {
        self.key(name, kind, value)
    }

    /// An F32 tensor, row-major, with values 0, 1, 2, …
    pub fn tensor(self, name: &str, dims: &[u64]) -> GgufWriter {
        let values: Vec<f32> = (0..dims.iter().product::<u64>()).map(|n| n as f32).collect();
        self.values(name, dims, &values)
    }

    /// An F32 tensor, row-major.
    pub fn values(self, name: &str, dims: &[u64], values: &[f32]) -> GgufWriter {
        self.blocks(name, dims, 0, values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    /// A tensor of any type, already encoded.
    pub fn blocks(mut self, name: &str, dims: &[u64], kind: u32, bytes: Vec<u8>) -> GgufWriter {
        let dims = dims.iter().rev().copied().collect();
        self.tensors.push(GgufTensor { name: name.into(), dims, kind, offset: None, bytes });
        self
    }

    /// A valid file of version 3 with the default alignment, to be changed.
    pub fn parse(bytes: &[u8]) -> GgufWriter {
        let mut at = Reader { bytes, at: 0 };
        assert_eq!(at.take(4), b"GGUF");
        let (version, tensors, keys) = (at.u32(), at.u64(), at.u64());
        let mut writer = GgufWriter { version, counts: None, alignment: 32, keys: Vec::new(), tensors: Vec::new() };
        for _ in 0..keys {
            let start = at.at;
            at.text();
            let kind = at.u32();
            at.value(kind);
            writer.keys.push(bytes[start..at.at].to_vec());
        }
        for _ in 0..tensors {
            let name = String::from_utf8(at.text().to_vec()).expect("a name in UTF-8");
            let dims: Vec<u64> = (0..at.u32()).map(|_| at.u64()).collect();
            let (kind, offset) = (at.u32(), at.u64());
            writer.tensors.push(GgufTensor { name, dims, kind, offset: Some(offset), bytes: Vec::new() });
        }
        let data = &bytes[at.at.next_multiple_of(32)..];
        let offset = |t: &GgufTensor| t.offset.expect("parsed") as usize;
        let ends: Vec<usize> = (writer.tensors.iter())
            .map(|t| writer.tensors.iter().map(offset).filter(|o| *o > offset(t)).min().unwrap_or(data.len()))
            .collect();
        for (tensor, end) in writer.tensors.iter_mut().zip(ends) {
            tensor.bytes = data[offset(tensor)..end].to_vec();
            tensor.offset = None;
            if tensor.kind == 0 {
                tensor.bytes.truncate(4 * tensor.dims.iter().product::<u64>() as usize);
            }
        }
        writer
    }

    /// The same file with its F32 matrices in Q8_0, as far as their rows are whole blocks of 32: the
    /// blocks, or the F32 values that they stand for.
    pub fn in_q8_0(mut self, as_floats: bool) -> GgufWriter {
        for t in self.tensors.iter_mut().filter(|t| t.kind == 0 && t.dims.len() > 1 && t.dims[0] % 32 == 0) {
            let values: Vec<f32> = t.bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
            let blocks: Vec<(i32, Vec<i8>)> = values.chunks(32).map(q8_0).collect();
            t.bytes = match as_floats {
                true => (blocks.iter())
                    .flat_map(|(e, codes)| codes.iter().map(|c| f32::from(*c) * 2f32.powi(*e)))
                    .flat_map(f32::to_le_bytes)
                    .collect(),
                // A power of two in f16 has no mantissa.
                false => (blocks.iter())
                    .flat_map(|(e, codes)| {
                        let scale = ((15 + e) as u16) << 10;
                        scale.to_le_bytes().into_iter().chain(codes.iter().map(|c| *c as u8))
                    })
                    .collect(),
            };
            t.kind = if as_floats { 0 } else { 8 };
        }
        self
    }

    /// Sets the alignment and declares it in the metadata.
    pub fn aligned(mut self, alignment: u32) -> GgufWriter {
        self.alignment = alignment as usize;
        self.u32("general.alignment", alignment)
    }

    /// The encoded file.
    pub fn bytes(&self) -> Vec<u8> {
        let (tensors, keys) = self.counts.unwrap_or((self.tensors.len() as u64, self.keys.len() as u64));
        let mut out = [&b"GGUF"[..], &self.version.to_le_bytes(), &tensors.to_le_bytes(), &keys.to_le_bytes()].concat();
        out.extend(self.keys.concat());
        let mut data: Vec<u8> = Vec::new();
        let align = |bytes: &mut Vec<u8>| bytes.resize(bytes.len().next_multiple_of(self.alignment), 0);
        for GgufTensor { name, dims, kind, offset, bytes } in &self.tensors {
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

/// A block of 32 values in Q8_0, with a scale that is a power of two: its exponent and the codes.
fn q8_0(values: &[f32]) -> (i32, Vec<i8>) {
    let largest = values.iter().fold(0f32, |largest, v| largest.max(v.abs()));
    let exponent = if largest == 0.0 { -14 } else { ((largest / 127.0).log2().ceil() as i32).clamp(-14, 15) };
    (exponent, values.iter().map(|v| (v / 2f32.powi(exponent)).round_ties_even() as i8).collect())
}

/// Reads the parts of a file before its tensor data.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> &'a [u8] {
        self.at += n;
        &self.bytes[self.at - n..self.at]
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().expect("four bytes"))
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().expect("eight bytes"))
    }

    fn text(&mut self) -> &'a [u8] {
        let n = self.u64() as usize;
        self.take(n)
    }

    /// Skips a metadata value of a type.
    fn value(&mut self, kind: u32) {
        match kind {
            0 | 1 | 7 => drop(self.take(1)),
            2 | 3 => drop(self.take(2)),
            4..=6 => drop(self.take(4)),
            8 => drop(self.text()),
            9 => {
                let (item, count) = (self.u32(), self.u64());
                (0..count).for_each(|_| self.value(item));
            }
            _ => drop(self.take(8)),
        }
    }
}
