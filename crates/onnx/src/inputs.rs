//! The inputs of a call: which of them a graph has, and their values as tensors.

use crate::batch::Padded;
use half::f16;
use ort::session::SessionInputValue;
use ort::value::Tensor;
use sconce_engine::{Element, GraphSummary};
use std::borrow::Cow;

/// What an input holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Ids,
    Mask,
    Types,
    Positions,
    Pixels,
}

/// An input that we can fill.
#[derive(Clone, Debug)]
pub(crate) struct Input {
    name: String,
    kind: Kind,
    element: Element,
}

/// Images `[3, side, side]`, one after another.
#[derive(Debug, Default)]
pub(crate) struct Pixels {
    pub(crate) images: usize,
    pub(crate) side: usize,
    pub(crate) values: Vec<f32>,
}

/// The inputs of a graph. Fails if we cannot fill one of them.
pub(crate) fn of(summary: &GraphSummary) -> Result<Vec<Input>, String> {
    let input = |port: &sconce_engine::GraphPort| {
        let kind = match port.name.as_str() {
            "input_ids" => Kind::Ids,
            "attention_mask" => Kind::Mask,
            "token_type_ids" => Kind::Types,
            "position_ids" => Kind::Positions,
            "pixel_values" => Kind::Pixels,
            _ => return Err(format!("its input {port} is not one that Sconce fills")),
        };
        let is_filled = match kind {
            Kind::Pixels => matches!(port.element, Element::F32 | Element::F16),
            _ => matches!(port.element, Element::I32 | Element::I64),
        };
        match is_filled {
            true => Ok(Input { name: port.name.clone(), kind, element: port.element }),
            false => Err(format!("its input {port} has a type that Sconce does not fill")),
        }
    };
    summary.inputs.iter().map(input).collect()
}

/// Whether the inputs have one of this kind.
pub(crate) fn has(inputs: &[Input], kind: Kind) -> bool {
    inputs.iter().any(|input| input.kind == kind)
}

/// The named tensors of a call.
pub(crate) fn fill<'a>(
    inputs: &'a [Input],
    texts: &mut Padded,
    pixels: &mut Pixels,
) -> ort::Result<Vec<(Cow<'a, str>, SessionInputValue<'static>)>> {
    let value = |input: &'a Input| -> ort::Result<_> {
        let numbers = match input.kind {
            Kind::Ids => &mut texts.ids,
            Kind::Mask => &mut texts.mask,
            Kind::Types => &mut texts.types,
            Kind::Positions => &mut texts.positions,
            Kind::Pixels => return Ok((Cow::from(&*input.name), images(pixels, input.element)?)),
        };
        let value = integers(std::mem::take(numbers), [texts.texts, texts.length], input.element)?;
        Ok((Cow::from(&*input.name), value))
    };
    inputs.iter().map(value).collect()
}

fn integers(values: Vec<i64>, dims: [usize; 2], element: Element) -> ort::Result<SessionInputValue<'static>> {
    Ok(match element {
        Element::I32 => {
            // Ids and positions are u32 and below the sizes of tables, which 32 bits hold.
            let narrow: Vec<i32> = values.into_iter().map(|value| value as i32).collect();
            Tensor::from_array((dims, narrow))?.into()
        }
        _ => Tensor::from_array((dims, values))?.into(),
    })
}

fn images(pixels: &mut Pixels, element: Element) -> ort::Result<SessionInputValue<'static>> {
    let (dims, values) = ([pixels.images, 3, pixels.side, pixels.side], std::mem::take(&mut pixels.values));
    Ok(match element {
        Element::F16 => {
            let half: Vec<f16> = values.into_iter().map(f16::from_f32).collect();
            Tensor::from_array((dims, half))?.into()
        }
        _ => Tensor::from_array((dims, values))?.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sconce_engine::GraphPort;

    #[test]
    fn inputs_that_cannot_be_filled_are_named() {
        let inputs = |name: &str, element| {
            let port = GraphPort { name: name.into(), element, dims: Vec::new() };
            of(&GraphSummary { inputs: vec![port], ..GraphSummary::default() })
        };
        assert!(has(&inputs("attention_mask", Element::I32).unwrap(), Kind::Mask));
        assert!(has(&inputs("pixel_values", Element::F16).unwrap(), Kind::Pixels));
        assert!(inputs("past_key_values.0.key", Element::F32).unwrap_err().contains("past_key_values.0.key"));
        assert!(inputs("attention_mask", Element::Other(9)).unwrap_err().contains("bool"));
        assert!(inputs("pixel_values", Element::I64).unwrap_err().contains("int64"));
    }
}
