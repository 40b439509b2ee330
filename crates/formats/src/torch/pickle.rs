//! The state dict in a checkpoint's pickle. A pickle is a program for a small stack machine, whose dangerous words name
//! a function and call it. This machine has no functions: the few names that torch.save writes for tensors are markers,
//! calling one makes a record of its arguments, and every other name or way of calling is refused.
//!
//! A hostile pickle costs little: no step is longer than the bytes it consumes, nothing recurses, and all that is kept
//! lies in flat lists with at most [`MOST`] values between them.

use super::Dtype;

/// A tensor takes about 30 values, and no model that one file holds has as many as 50 000 tensors.
const MOST: usize = 3 << 19;
/// As many tensors take a sixth of this. A step is so short that time needs no other limit.
pub(super) const LONGEST: usize = 64 << 20;
/// Torch's names for its storages and formats. The last ones came when storages had become untyped.
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
    /// What no tensor depends on: numbers with a point, sets, bytes.
    Other,
    None,
    Bool(bool),
    Int(i64),
    Text(&'a [u8]),
    Tuple(Span),
    List(u32),
    Dict(u32),
    Global(Global),
    /// The tuple that names it.
    Storage(Span),
    /// The arguments it is made of.
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
    /// Without a format where it is untyped.
    Storage(Option<Dtype>),
}

#[derive(Default)]
pub(super) struct Machine<'a> {
    /// What has not been read yet; at the end, what follows the pickle.
    pub(super) rest: &'a [u8],
    stack: Vec<Value<'a>>,
    /// How high the stack was at each mark that is still open.
    marks: Vec<usize>,
    memo: Vec<Value<'a>>,
    /// The insides of all tuples. A tuple is a place in here, so that a copy of one is never long.
    items: Vec<Value<'a>>,
    /// The insides of all dicts as they were set: which dict, key, value.
    set: Vec<(u32, Value<'a>, Value<'a>)>,
    /// The texts in all lists as they came: which list, text. Nobody asks for anything else that is in one.
    listed: Vec<(u32, &'a [u8])>,
    /// What stood under every storage, in the pickle's order.
    storages: Vec<Span>,
    /// So many dicts and lists.
    made: u32,
}

impl<'a> Machine<'a> {
    /// Runs the pickle that `pickle` begins with: what it holds, and the machine that knows what is in that.
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

    /// Runs one opcode; what the pickle holds, when that was its last.
    fn step(&mut self) -> Result<Option<Value<'a>>, String> {
        let kept = self.stack.len() + self.marks.len() + self.memo.len() + self.items.len();
        if kept + 3 * self.set.len() + self.listed.len() + self.storages.len() > MOST {
            return Err(format!("has a pickle of more than {MOST} values, which no state dict needs"));
        }
        let value = match self.number(1)? as u8 {
            b'.' => return self.pop().map(Some),
            // Which protocol, and how long a frame is: neither changes what follows.
            0x80 => return self.take(1).map(|_| None),
            0x95 => return self.take(8).map(|_| None),
            b'(' => {
                self.marks.push(self.stack.len());
                return Ok(None);
            }
            b'0' if self.marks.last() == Some(&self.stack.len()) => return self.cut().map(|_| None),
            b'0' => return self.pop().map(|_| None),
            b'1' => {
                let from = self.cut()?;
                self.stack.truncate(from);
                return Ok(None);
            }
            b'N' => Value::None,
            code @ 0x88..=0x89 => Value::Bool(code == 0x88),
            b']' => Value::List(self.make()),
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
                let from = self.cut()?;
                self.tuple(from)
            }
            b'}' => Value::Dict(self.make()),
            b's' => {
                let from = self.down(2)?;
                return self.assign(from);
            }
            b'u' => {
                let from = self.cut()?;
                return self.assign(from);
            }
            b'a' => {
                let from = self.down(1)?;
                self.append(from)?
            }
            b'e' | 0x90 => {
                let from = self.cut()?;
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
                _ => return Err(broken()),
            },
            b'Q' => match self.pop()? {
                Value::Tuple(id) => {
                    self.storages.push(id);
                    Value::Storage(id)
                }
                _ => return Err(broken()),
            },
            b'R' => match (self.pop()?, self.pop()?) {
                (Value::Tuple(arguments), Value::Global(function)) => self.call(function, arguments)?,
                _ => return Err(foreign("calls something that is not a function by name (REDUCE)")),
            },
            // An object's attributes. On a state dict they are the modules' versions; nothing of ours has others.
            b'b' => match (self.pop()?, self.pop()?) {
                (_, dict @ Value::Dict(_)) => dict,
                _ => return Err(foreign("sets attributes of something that is not a dict (BUILD)")),
            },
            b'i' => {
                return Err(foreign(&format!(
                    "makes an object of {}.{} (INST)",
                    shown(self.line()?),
                    shown(self.line()?)
                )));
            }
            b'o' | 0x81 | 0x92 => return Err(foreign("makes an object (OBJ or NEWOBJ)")),
            code => return Err(foreign(&format!("uses the opcode {code:#04x}"))),
        };
        self.stack.push(value);
        Ok(None)
    }

    /// A call, of which only the record is made.
    fn call(&mut self, function: Global, arguments: Span) -> Result<Value<'a>, String> {
        match (function, self.items(arguments)) {
            (Global::OrderedDict, []) => Ok(Value::Dict(self.make())),
            (Global::Tensor, _) => Ok(Value::Tensor(arguments)),
            // Whether it wants a gradient, its hooks and its attributes follow.
            (Global::Parameter, &[tensor @ Value::Tensor(_), ..]) => Ok(tensor),
            (Global::Size, &[size @ Value::Tuple(_)]) => Ok(size),
            (Global::Device, _) => Ok(Value::Other),
            _ => Err(foreign("calls a function of torch with arguments that torch.save does not give it (REDUCE)")),
        }
    }

    /// What `dict` holds, as it was set.
    pub(super) fn entries(&self, dict: u32) -> impl Iterator<Item = (Value<'a>, Value<'a>)> {
        self.set.iter().filter(move |(owner, ..)| *owner == dict).map(|&(_, key, value)| (key, value))
    }

    /// The texts in `list`.
    pub(super) fn texts(&self, list: u32) -> impl Iterator<Item = &'a [u8]> {
        self.listed.iter().filter(move |(owner, _)| *owner == list).map(|&(_, text)| text)
    }

    /// Every storage that was named, also those that no state dict has, as often as it was.
    pub(super) fn storages(&self) -> &[Span] {
        &self.storages
    }

    fn pop(&mut self) -> Result<Value<'a>, String> {
        self.down(1)?;
        self.stack.pop().ok_or_else(broken)
    }

    /// Where the last `count` values begin, all of them above the last mark.
    fn down(&self, count: usize) -> Result<usize, String> {
        let floor = self.marks.last().copied().unwrap_or(0);
        self.stack.len().checked_sub(count).filter(|&from| from >= floor).ok_or_else(broken)
    }

    /// Closes the last mark: where the values above it begin.
    fn cut(&mut self) -> Result<usize, String> {
        self.marks.pop().ok_or_else(broken)
    }

    /// Makes a tuple of the stack from `from` on.
    fn tuple(&mut self, from: usize) -> Value<'a> {
        let span = Span { at: self.items.len() as u32, len: (self.stack.len() - from) as u32 };
        self.items.extend(self.stack.drain(from..));
        Value::Tuple(span)
    }

    /// What is in a tuple.
    pub(super) fn items(&self, Span { at, len }: Span) -> &[Value<'a>] {
        &self.items[at as usize..][..len as usize]
    }

    /// The number of a new dict or list.
    fn make(&mut self) -> u32 {
        self.made += 1;
        self.made
    }

    /// Adds the stack from `from` on to the list or set below, which is taken off too.
    fn append(&mut self, from: usize) -> Result<Value<'a>, String> {
        let below = self.stack[self.down(self.stack.len() - from + 1)?];
        for value in self.stack.drain(from..) {
            if let (Value::List(list), Value::Text(text)) = (below, value) {
                self.listed.push((list, text));
            }
        }
        self.pop()
    }

    /// Sets the pairs on the stack from `from` on in the dict below them.
    fn assign(&mut self, from: usize) -> Result<Option<Value<'a>>, String> {
        let below = self.down(self.stack.len() - from + 1)?;
        let (Value::Dict(dict), (pairs, [])) = (self.stack[below], self.stack[from..].as_chunks::<2>()) else {
            return Err(foreign("sets items of something that is not a dict (SETITEMS)"));
        };
        self.set.extend(pairs.iter().map(|&[key, value]| (dict, key, value)));
        self.stack.truncate(from);
        Ok(None)
    }

    fn recall(&mut self, width: usize) -> Result<Value<'a>, String> {
        let at = self.number(width)? as usize;
        self.memo.get(at).copied().ok_or_else(broken)
    }

    /// Keeps the top of the stack. Picklers count upwards, so a number far ahead is an attempt to have memory reserved.
    fn memorize(&mut self, at: usize) -> Result<Option<Value<'a>>, String> {
        let value = self.stack[self.down(1)?];
        if at == self.memo.len() {
            self.memo.push(value);
        } else {
            *self.memo.get_mut(at).ok_or_else(broken)? = value;
        }
        Ok(None)
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or_else(broken)?;
        self.rest = rest;
        Ok(taken)
    }

    /// A little-endian number of at most eight bytes.
    fn number(&mut self, width: usize) -> Result<u64, String> {
        Ok(self.take(width)?.iter().rev().fold(0, |n, &digit| n << 8 | u64::from(digit)))
    }

    /// Bytes that follow their count.
    fn counted(&mut self, width: usize) -> Result<&'a [u8], String> {
        let count = usize::try_from(self.number(width)?).map_err(|_| broken())?;
        self.take(count)
    }

    fn line(&mut self) -> Result<&'a [u8], String> {
        let end = self.rest.iter().position(|&b| b == b'\n').ok_or_else(broken)?;
        self.take(end + 1).map(|line| &line[..end])
    }
}

/// A little-endian integer; one that has no place in a shape is kept as something else.
fn integer(digits: &[u8]) -> Value<'static> {
    let Some(&top) = digits.last() else { return Value::Int(0) };
    let mut wide = if top < 0x80 { [0; 8] } else { [0xff; 8] };
    match wide.get_mut(..digits.len()) {
        Some(low) => low.copy_from_slice(digits),
        None => return Value::Other,
    }
    Value::Int(i64::from_le_bytes(wide))
}

/// What a name means, of the few that mean something.
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
    known.map(Value::Global).ok_or_else(|| foreign(&format!("names {}.{}", shown(module), shown(name))))
}

/// The refusal of what a state dict does not need.
fn foreign(what: &str) -> String {
    format!(
        "is a pickle that {what}. That is more than a state dict needs and may be meant to run code, so it is not read; \
         if you trust it, load it in Python and save model.state_dict() as safetensors"
    )
}

fn broken() -> String {
    "holds a pickle that is cut short or makes no sense; fetch it again".into()
}

/// A name from the file, fit for a message.
pub(super) fn shown(name: &[u8]) -> String {
    let mut shown: String = String::from_utf8_lossy(&name[..name.len().min(100)]).escape_debug().collect();
    if name.len() > 100 {
        shown.push('…');
    }
    shown
}
