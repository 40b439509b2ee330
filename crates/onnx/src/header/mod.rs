//! Reads the head of an ONNX file within limits, before ONNX Runtime sees the file: inputs, outputs,
//! operators, and the sizes of the weights.
//!
//! The library parses such a file with the memory and recursion that the file asks for. This reader
//! skips the numbers of the weights, takes memory for names and shapes only, and refuses a file that
//! is truncated, nested too deeply, or whose weights do not have the size that their shape says.

mod tensor;
#[cfg(test)]
mod tests;
mod wire;

pub use tensor::External;

use std::collections::{BTreeMap, BTreeSet};
use tensor::Weight;
use wire::{Fields, Value, message, numbers, string};

/// The deepest nesting of graphs within graphs (the branches of `If`, the body of `Loop`).
const DEEPEST: usize = 16;
/// The most nodes, weights, inputs and outputs of a file, each. The largest exported language models
/// have tens of thousands of nodes.
const MOST: usize = 1 << 20;
/// The longest name.
const LONGEST_NAME: usize = 4096;
/// The most dimensions of a tensor.
const MOST_DIMS: usize = 64;
/// The most different operators, ours and the standard's together: about two hundred exist.
const MOST_OPERATORS: usize = 4096;
/// The most elements that a node may create from nothing (`ConstantOfShape`, `Expand`). Exported
/// encoders create masks with it, of a few thousand elements.
const MOST_CREATED: u64 = 1 << 28;

/// Operators that quantize activations while they run, by the range of all texts in the batch: a
/// text's result then depends on the others.
const DYNAMIC: [&str; 3] = ["DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"];

/// An input or output of a graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// The number of its element type in ONNX: 1 is f32, 7 is i64.
    pub element: u64,
    /// Its dimensions, `None` where any length is accepted; empty also if the file does not say.
    pub dims: Vec<Option<u64>>,
}

/// What the head of a file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Inputs that are not weights, in the order of the file.
    pub inputs: Vec<Port>,
    /// Outputs, in the order of the file.
    pub outputs: Vec<Port>,
    /// How many nodes each operator has, in all graphs of the file.
    pub operators: BTreeMap<String, u64>,
    /// Weights in other files.
    pub external: Vec<External>,
    /// Nodes in all graphs of the file.
    nodes: usize,
    /// Weights in all graphs of the file.
    weights: usize,
}

impl Header {
    /// Whether a text's result depends on the other texts of its batch.
    pub fn is_dynamically_quantized(&self) -> bool {
        DYNAMIC.iter().any(|name| self.operators.contains_key(*name))
    }
}

/// Reads the head of an ONNX file. An error says what is wrong with the file.
pub fn parse(file: &[u8]) -> Result<Header, String> {
    let mut header = Header::default();
    let (mut fields, mut graphs, mut version) = (Fields::new(file), 0, None);
    while let Some((number, value)) = fields.next()? {
        match (number, value) {
            (1, Value::Varint(ir)) => version = Some(ir),
            (7, value) => {
                graphs += 1;
                header.graph(message(value)?, 0)?;
            }
            // Functions are inlined where a node calls them, so their nodes count too.
            (25, value) => header.function(message(value)?)?,
            _ => {}
        }
    }
    match (version, graphs) {
        (None, _) => Err("not an ONNX file: it has no version".into()),
        (Some(_), 1) => Ok(header),
        (Some(_), n) => Err(format!("not an ONNX model: it has {n} graphs instead of one")),
    }
}

/// What matters of a node.
enum Node {
    /// It creates a tensor of the shape with this name.
    Creates { operator: String, shape: String },
    /// It gives a name to a short list of integers.
    Constant { name: String, shape: Vec<i64> },
    /// Nothing.
    Other,
}

impl Header {
    fn graph(&mut self, mut fields: Fields<'_>, depth: usize) -> Result<(), String> {
        if depth > DEEPEST {
            return Err(format!("its graphs are nested more than {DEEPEST} deep"));
        }
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        let (mut weights, mut shaped) = (BTreeSet::new(), Vec::new());
        // Short lists of integers by their names: weights, and what `Constant` creates.
        let mut shapes = BTreeMap::new();
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => match self.node(message(value)?, depth)? {
                    Node::Creates { operator, shape } => shaped.push((operator, shape)),
                    Node::Constant { name, shape } => drop(shapes.insert(name, shape)),
                    Node::Other => {}
                },
                5 => {
                    let weight = self.weight(message(value)?)?;
                    shapes.extend(weight.shape.map(|shape| (weight.name.clone(), shape)));
                    weights.insert(weight.name);
                }
                // A sparse weight: its values and indices are tensors.
                15 => self.sparse(message(value)?)?,
                11 => bounded(&mut inputs, port(message(value)?)?)?,
                12 => bounded(&mut outputs, port(message(value)?)?)?,
                _ => {}
            }
        }
        for (operator, name) in shaped {
            let Some(shape) = shapes.get(&name) else { continue };
            let size = |dim: i64| match operator.as_str() {
                // Keeps the size that the input has.
                "Expand" if dim == -1 => Some(1),
                _ => u64::try_from(dim).ok(),
            };
            let created = shape.iter().try_fold(1u64, |n, dim| n.checked_mul(size(*dim)?));
            if created.is_none_or(|n| n > MOST_CREATED) {
                return Err(format!("{operator} creates a tensor of shape {shape:?}, which is absurd"));
            }
        }
        if depth == 0 {
            // Old files list the weights among the inputs.
            self.inputs = inputs.into_iter().filter(|port: &Port| !weights.contains(&port.name)).collect();
            self.outputs = outputs;
        }
        Ok(())
    }

    /// Reads a node.
    fn node(&mut self, mut fields: Fields<'_>, depth: usize) -> Result<Node, String> {
        self.nodes += 1;
        if self.nodes > MOST {
            return Err(format!("it has more than {MOST} nodes"));
        }
        let (mut operator, mut inputs, mut output, mut held) = (String::new(), Vec::new(), None, None);
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => bounded(&mut inputs, string(value, LONGEST_NAME)?)?,
                2 if output.is_none() => output = Some(string(value, LONGEST_NAME)?),
                4 => operator = string(value, LONGEST_NAME)?,
                5 => held = self.attribute(message(value)?, depth)?.or(held),
                _ => {}
            }
        }
        *self.operators.entry(operator.clone()).or_default() += 1;
        if self.operators.len() > MOST_OPERATORS {
            return Err(format!("it has more than {MOST_OPERATORS} different operators"));
        }
        let shape = match operator.as_str() {
            "Constant" => {
                let constant = output.zip(held).map(|(name, shape)| Node::Constant { name, shape });
                return Ok(constant.unwrap_or(Node::Other));
            }
            "ConstantOfShape" => inputs.into_iter().next(),
            "Expand" => inputs.into_iter().nth(1),
            _ => None,
        };
        Ok(shape.map_or(Node::Other, |shape| Node::Creates { operator, shape }))
    }

    /// Reads an attribute. Returns the short list of integers that it holds.
    fn attribute(&mut self, mut fields: Fields<'_>, depth: usize) -> Result<Option<Vec<i64>>, String> {
        let (mut shape, mut list) = (None, Vec::new());
        while let Some((number, value)) = fields.next()? {
            match number {
                5 => shape = self.weight(message(value)?)?.shape,
                10 => drop(self.weight(message(value)?)?),
                6 | 11 => self.graph(message(value)?, depth + 1)?,
                22 | 23 => self.sparse(message(value)?)?,
                // A longer list is no shape.
                8 if list.len() <= MOST_DIMS => {
                    let _ = numbers(value, MOST_DIMS + 1, &mut list);
                }
                _ => {}
            }
        }
        Ok(shape.or((1..=MOST_DIMS).contains(&list.len()).then_some(list)))
    }

    fn function(&mut self, mut fields: Fields<'_>) -> Result<(), String> {
        while let Some((number, value)) = fields.next()? {
            if number == 7 {
                self.node(message(value)?, 1)?;
            }
        }
        Ok(())
    }

    fn sparse(&mut self, mut fields: Fields<'_>) -> Result<(), String> {
        while let Some((number, value)) = fields.next()? {
            if let 1 | 2 = number {
                self.weight(message(value)?)?;
            }
        }
        Ok(())
    }

    fn weight(&mut self, fields: Fields<'_>) -> Result<Weight, String> {
        self.weights += 1;
        if self.weights > MOST {
            return Err(format!("it has more than {MOST} weights"));
        }
        let mut weight = tensor::read(fields)?;
        self.external.extend(weight.external.take());
        Ok(weight)
    }
}

/// Reads an input or output.
fn port(mut fields: Fields<'_>) -> Result<Port, String> {
    let mut port = Port::default();
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => port.name = string(value, LONGEST_NAME)?,
            2 => {
                let mut kinds = message(value)?;
                while let Some((number, value)) = kinds.next()? {
                    // 1 is a dense tensor; sequences and maps have no shape that we could use.
                    if number == 1 {
                        tensor_type(message(value)?, &mut port)?;
                    }
                }
            }
            _ => {}
        }
    }
    Ok(port)
}

fn tensor_type(mut fields: Fields<'_>, port: &mut Port) -> Result<(), String> {
    while let Some((number, value)) = fields.next()? {
        match (number, value) {
            (1, Value::Varint(element)) => port.element = element,
            (2, shape) => {
                let mut dims = message(shape)?;
                while let Some((number, value)) = dims.next()? {
                    if number == 1 {
                        let dim = dimension(message(value)?)?;
                        if port.dims.len() == MOST_DIMS {
                            return Err(format!("{} has more than {MOST_DIMS} dimensions", port.name));
                        }
                        port.dims.push(dim);
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// A fixed length, or `None` for a name or nothing.
fn dimension(mut fields: Fields<'_>) -> Result<Option<u64>, String> {
    let mut length = None;
    while let Some((number, value)) = fields.next()? {
        if let (1, Value::Varint(n)) = (number, value) {
            // Some exporters write -1 or 0 for any length.
            length = i64::try_from(n).ok().filter(|n| *n > 0).map(|n| n as u64);
        }
    }
    Ok(length)
}

fn bounded<T>(list: &mut Vec<T>, item: T) -> Result<(), String> {
    if list.len() == MOST {
        return Err(format!("it has a list of more than {MOST} entries"));
    }
    list.push(item);
    Ok(())
}
