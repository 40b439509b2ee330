//! A safe parser for the pickle of a checkpoint. A pickle is a program for a small stack machine,
//! whose dangerous opcodes name a function and call it. This machine has no functions: the few
//! names that torch.save writes for tensors are markers, calling one records its arguments, and
//! every other name or call is refused.
//!
//! A hostile pickle costs little: no step takes longer than the bytes it consumes, nothing
//! recurses, and all state is in flat lists with at most [`MAX_VALUES`] values in total.

use super::Dtype;

/// A tensor takes about 30 values, and no model in a single file has 50 000 tensors.
const MAX_VALUES: usize = 3 << 19;
/// The pickle of 50 000 tensors takes a sixth of this. Steps are so short that no time limit is
/// needed.
pub(super) const LONGEST: usize = 64 << 20;
/// Torch's names of storages and dtypes. The last ones were added when storages had become untyped.
const FORMATS: [(&str, &str, Dtype); 15] = [
    ("DoubleStorage", "float64", Dtype::F64),
    ("FloatStorage", "float32", Dtype::F32),
    ("HalfStorage", "float16", Dtype::F16),
    ("BFloat16Storage", "bfloat16", Dtype::BF16),
    ("LongStorage", "int64", Dtype::I64),
    ("IntStorage", "int32", Dtype::I32),
    ("ShortStorage", "int16", Dtype::I16),
    ("CharStorage", "int8", Dtype::I8),
    ("ByteStorage", "uint8", Dtype::U8),
    ("BoolStorage", "bool", Dtype::Bool),
    ("", "uint64", Dtype::U64),
    ("", "uint32", Dtype::U32),
    ("", "uint16", Dtype::U16),
    ("", "float8_e4m3fn", Dtype::F8_E4M3),
    ("", "float8_e5m2", Dtype::F8_E5M2),
];

#[derive(Clone, Copy)]
pub(super) enum Value<'a> {
    /// Values that no tensor needs: floats, sets, bytes.
    Other,
    None,
    Bool(bool),
    Int(i64),
    Text(&'a [u8]),
    Tuple(Span),
    List(u32),
    Dict(u32),
    Global(Global),
    /// The tuple that names the storage.
    Storage(Span),
    /// The arguments of the call that builds it.
    Tensor(Span),
}

/// Consecutive values in `Machine::items`.
#[derive(Clone, Copy)]
pub(super) struct Span {
    at: u32,
    len: u32,
}

#[derive(Clone, Copy)]
pub(super) enum Global {
    OrderedDict,
    Tensor,
    Parameter,
    Size,
    Device,
    Dtype(Dtype),
    /// `None` if untyped.
    Storage(Option<Dtype>),
}

#[derive(Default)]
pub(super) struct Machine<'a> {
    /// Bytes not read yet; at the end, what follows the pickle.
    pub(super) rest: &'a [u8],
    stack: Vec<Value<'a>>,
    /// Stack heights at the open marks.
    marks: Vec<usize>,
    memo: Vec<Value<'a>>,
    /// Items of all tuples. A tuple is a range of these, so that copying one is cheap.
    items: Vec<Value<'a>>,
    /// Entries of all dicts as they were set: dict, key, value.
    dict_entries: Vec<(u32, Value<'a>, Value<'a>)>,
    /// Texts in all lists, in order: list, text. Other list items are not needed.
    list_texts: Vec<(u32, &'a [u8])>,
    /// The id tuple of every storage, in order.
    storages: Vec<Span>,
    /// Number of dicts and lists.
    containers: u32,
}

impl<'a> Machine<'a> {
    /// Runs the pickle at the start of `pickle`. Returns its value, and the machine that holds the
    /// content.
    pub(super) fn run(pickle: &'a [u8]) -> Result<(Machine<'a>, Value<'a>), String> {
        if pickle.len() > LONGEST {
            return Err(format!("has a pickle of {} bytes; none that lists tensors is over {LONGEST}", pickle.len()));
        }
        let mut machine = Machine { rest: pickle, ..Machine::default() };
        loop {
            if let Some(value) = machine.step()? {
                return Ok((machine, value));
            }
        }
    }

    /// Runs one opcode. Returns the value of the pickle after the last.
    fn step(&mut self) -> Result<Option<Value<'a>>, String> {
        let values = self.stack.len() + self.marks.len() + self.memo.len() + self.items.len();
        if values + 3 * self.dict_entries.len() + self.list_texts.len() + self.storages.len() > MAX_VALUES {
            return Err(format!("has a pickle of more than {MAX_VALUES} values, which no state dict needs"));
        }
        let value = match self.number(1)? as u8 {
            b'.' => return self.pop().map(Some),
            // Protocol version and frame length: neither changes what follows.
            0x80 => return self.take(1).map(|_| None),
            0x95 => return self.take(8).map(|_| None),
            b'(' => {
                self.marks.push(self.stack.len());
                return Ok(None);
            }
            b'0' if self.marks.last() == Some(&self.stack.len()) => return self.pop_mark().map(|_| None),
            b'0' => return self.pop().map(|_| None),
            b'1' => {
                let from = self.pop_mark()?;
                self.stack.truncate(from);
                return Ok(None);
            }
            b'N' => Value::None,
            code @ 0x88..=0x89 => Value::Bool(code == 0x88),
            b']' => Value::List(self.new_id()),
            0x8f => Value::Other,
            b'K' => Value::Int(self.number(1)? as i64),
            b'M' => Value::Int(self.number(2)? as i64),
            b'J' => Value::Int((self.number(4)? as i32).into()),
            0x8a => integer(self.counted(1)?),
            b'G' => self.take(8).map(|_| Value::Other)?,
            b'U' | 0x8c => Value::Text(self.counted(1)?),
            b'T' | b'X' => Value::Text(self.counted(4)?),
            0x8d => Value::Text(self.counted(8)?),
            b'C' => self.counted(1).map(|_| Value::Other)?,
            b'B' => self.counted(4).map(|_| Value::Other)?,
            0x8e | 0x96 => self.counted(8).map(|_| Value::Other)?,
            b')' => self.tuple(self.stack.len()),
            code @ 0x85..=0x87 => {
                let from = self.down(usize::from(code - 0x84))?;
                self.tuple(from)
            }
            b't' => {
                let from = self.pop_mark()?;
                self.tuple(from)
            }
            b'}' => Value::Dict(self.new_id()),
            b's' => {
                let from = self.down(2)?;
                return self.assign(from);
            }
            b'u' => {
                let from = self.pop_mark()?;
                return self.assign(from);
            }
            b'a' => {
                let from = self.down(1)?;
                self.append(from)?
            }
            b'e' | 0x90 => {
                let from = self.pop_mark()?;
                self.append(from)?
            }
            b'h' => self.recall(1)?,
            b'j' => self.recall(4)?,
            b'q' => return self.number(1).and_then(|at| self.memorize(at as usize)),
            b'r' => return self.number(4).and_then(|at| self.memorize(at as usize)),
            0x94 => return self.memorize(self.memo.len()),
            b'c' => global(self.line()?, self.line()?)?,
            0x93 => match (self.pop()?, self.pop()?) {
                (Value::Text(name), Value::Text(module)) => global(module, name)?,
                _ => return Err(malformed()),
            },
            b'Q' => match self.pop()? {
                Value::Tuple(id) => {
                    self.storages.push(id);
                    Value::Storage(id)
                }
                _ => return Err(malformed()),
            },
            b'R' => match (self.pop()?, self.pop()?) {
                (Value::Tuple(arguments), Value::Global(function)) => self.call(function, arguments)?,
                _ => return Err(refused("calls something that is not a function by name (REDUCE)")),
            },
            // An object's attributes. For a state dict they are the module versions; nothing else
            // that we accept has any.
            b'b' => match (self.pop()?, self.pop()?) {
                (_, dict @ Value::Dict(_)) => dict,
                _ => return Err(refused("sets attributes of something that is not a dict (BUILD)")),
            },
            b'i' => {
                return Err(refused(&format!(
                    "makes an object of {}.{} (INST)",
                    escaped(self.line()?),
                    escaped(self.line()?)
                )));
            }
            b'o' | 0x81 | 0x92 => return Err(refused("makes an object (OBJ or NEWOBJ)")),
            code => return Err(refused(&format!("uses the opcode {code:#04x}"))),
        };
        self.stack.push(value);
        Ok(None)
    }

    /// Records a call without running it.
    fn call(&mut self, function: Global, arguments: Span) -> Result<Value<'a>, String> {
        match (function, self.items(arguments)) {
            (Global::OrderedDict, []) => Ok(Value::Dict(self.new_id())),
            (Global::Tensor, _) => Ok(Value::Tensor(arguments)),
            // The other arguments are requires_grad, hooks and attributes.
            (Global::Parameter, &[tensor @ Value::Tensor(_), ..]) => Ok(tensor),
            (Global::Size, &[size @ Value::Tuple(_)]) => Ok(size),
            (Global::Device, _) => Ok(Value::Other),
            _ => Err(refused("calls a function of torch with arguments that torch.save does not give it (REDUCE)")),
        }
    }

    /// Entries of `dict`, as they were set.
    pub(super) fn entries(&self, dict: u32) -> impl Iterator<Item = (Value<'a>, Value<'a>)> {
        self.dict_entries.iter().filter(move |(owner, ..)| *owner == dict).map(|&(_, key, value)| (key, value))
    }

    /// The texts in `list`.
    pub(super) fn texts(&self, list: u32) -> impl Iterator<Item = &'a [u8]> {
        self.list_texts.iter().filter(move |(owner, _)| *owner == list).map(|&(_, text)| text)
    }

    /// The id of every named storage, with repetitions, even those outside the state dict.
    pub(super) fn storages(&self) -> &[Span] {
        &self.storages
    }

    fn pop(&mut self) -> Result<Value<'a>, String> {
        self.down(1)?;
        self.stack.pop().ok_or_else(malformed)
    }

    /// The index of the last `count` values, all above the last mark.
    fn down(&self, count: usize) -> Result<usize, String> {
        let floor = self.marks.last().copied().unwrap_or(0);
        self.stack.len().checked_sub(count).filter(|&from| from >= floor).ok_or_else(malformed)
    }

    /// Closes the last mark; returns the index of the values above it.
    fn pop_mark(&mut self) -> Result<usize, String> {
        self.marks.pop().ok_or_else(malformed)
    }

    /// Makes a tuple of the stack from index `from`.
    fn tuple(&mut self, from: usize) -> Value<'a> {
        let span = Span { at: self.items.len() as u32, len: (self.stack.len() - from) as u32 };
        self.items.extend(self.stack.drain(from..));
        Value::Tuple(span)
    }

    /// The items of a tuple.
    pub(super) fn items(&self, Span { at, len }: Span) -> &[Value<'a>] {
        &self.items[at as usize..][..len as usize]
    }

    /// The id of a new dict or list.
    fn new_id(&mut self) -> u32 {
        self.containers += 1;
        self.containers
    }

    /// Appends the stack from index `from` to the list or set below, and pops that, too.
    fn append(&mut self, from: usize) -> Result<Value<'a>, String> {
        let below = self.stack[self.down(self.stack.len() - from + 1)?];
        for value in self.stack.drain(from..) {
            if let (Value::List(list), Value::Text(text)) = (below, value) {
                self.list_texts.push((list, text));
            }
        }
        self.pop()
    }

    /// Sets the pairs on the stack from index `from` in the dict below them.
    fn assign(&mut self, from: usize) -> Result<Option<Value<'a>>, String> {
        let below = self.down(self.stack.len() - from + 1)?;
        let (Value::Dict(dict), (pairs, [])) = (self.stack[below], self.stack[from..].as_chunks::<2>()) else {
            return Err(refused("sets items of something that is not a dict (SETITEMS)"));
        };
        self.dict_entries.extend(pairs.iter().map(|&[key, value]| (dict, key, value)));
        self.stack.truncate(from);
        Ok(None)
    }

    fn recall(&mut self, width: usize) -> Result<Value<'a>, String> {
        let at = self.number(width)? as usize;
        self.memo.get(at).copied().ok_or_else(malformed)
    }

    /// Stores the top of the stack in the memo. Picklers number consecutively, so a number far
    /// ahead is an attempt to allocate memory.
    fn memorize(&mut self, at: usize) -> Result<Option<Value<'a>>, String> {
        let value = self.stack[self.down(1)?];
        if at == self.memo.len() {
            self.memo.push(value);
        } else {
            *self.memo.get_mut(at).ok_or_else(malformed)? = value;
        }
        Ok(None)
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or_else(malformed)?;
        self.rest = rest;
        Ok(taken)
    }

    /// A little-endian number of at most eight bytes.
    fn number(&mut self, width: usize) -> Result<u64, String> {
        Ok(self.take(width)?.iter().rev().fold(0, |n, &digit| n << 8 | u64::from(digit)))
    }

    /// Length-prefixed bytes.
    fn counted(&mut self, width: usize) -> Result<&'a [u8], String> {
        let count = usize::try_from(self.number(width)?).map_err(|_| malformed())?;
        self.take(count)
    }

    fn line(&mut self) -> Result<&'a [u8], String> {
        let end = self.rest.iter().position(|&b| b == b'\n').ok_or_else(malformed)?;
        self.take(end + 1).map(|line| &line[..end])
    }
}

/// A little-endian integer; one too large for a shape becomes `Other`.
fn integer(digits: &[u8]) -> Value<'static> {
    let Some(&top) = digits.last() else { return Value::Int(0) };
    let mut wide = if top < 0x80 { [0; 8] } else { [0xff; 8] };
    match wide.get_mut(..digits.len()) {
        Some(low) => low.copy_from_slice(digits),
        None => return Value::Other,
    }
    Value::Int(i64::from_le_bytes(wide))
}

/// The marker for a global name; unknown names are refused.
fn global(module: &[u8], name: &[u8]) -> Result<Value<'static>, String> {
    let typed = |(storage, dtype, format): &(&str, &str, Dtype)| match name {
        _ if module != b"torch" || name.is_empty() => None,
        _ if name == storage.as_bytes() => Some(Global::Storage(Some(*format))),
        _ if name == dtype.as_bytes() => Some(Global::Dtype(*format)),
        _ => None,
    };
    let known = match (module, name) {
        (b"collections", b"OrderedDict") => Some(Global::OrderedDict),
        (b"torch._utils", b"_rebuild_tensor_v2" | b"_rebuild_tensor_v3") => Some(Global::Tensor),
        (b"torch._utils", b"_rebuild_parameter" | b"_rebuild_parameter_with_state") => Some(Global::Parameter),
        (b"torch", b"Size") => Some(Global::Size),
        (b"torch", b"device") => Some(Global::Device),
        (b"torch" | b"torch.storage", b"UntypedStorage") => Some(Global::Storage(None)),
        _ => FORMATS.iter().find_map(typed),
    };
    known.map(Value::Global).ok_or_else(|| refused(&format!("names {}.{}", escaped(module), escaped(name))))
}

/// The error for anything that a state dict does not need.
fn refused(what: &str) -> String {
    format!(
        "is a pickle that {what}. That is more than a state dict needs and may be meant to run code, so it is not read; \
         if you trust it, load it in Python and save model.state_dict() as safetensors"
    )
}

fn malformed() -> String {
    "holds a pickle that is cut short or makes no sense; fetch it again".into()
}

/// Escapes and shortens a name from the file for a message.
pub(super) fn escaped(name: &[u8]) -> String {
    let mut escaped: String = String::from_utf8_lossy(&name[..name.len().min(100)]).escape_debug().collect();
    if name.len() > 100 {
        escaped.push('…');
    }
    escaped
}
