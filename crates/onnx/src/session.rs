//! A session of ONNX Runtime: one graph on one execution provider.

use crate::batch::{Bucketing, Padded, pad};
use crate::library::{Library, library};
use half::f16;
use ort::ep::{self, ExecutionProvider, ExecutionProviderDispatch};
use ort::session::builder::SessionBuilder;
use ort::session::{HasSelectedOutputs, OutputSelector, RunOptions, Session, SessionInputValue};
use ort::value::{DynValue, Tensor, TensorElementType, ValueType};
use sconce_engine::{Graph, GraphSettings, GraphSummary, GraphText, Provider, ProviderNodes};
use std::borrow::Cow;
use std::cell::RefCell;
use std::path::Path;

/// The inputs that an encoder may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    Ids,
    Mask,
    Types,
    Positions,
}

/// An opened graph.
pub(crate) struct OnnxGraph {
    session: RefCell<Session>,
    options: RunOptions<HasSelectedOutputs>,
    /// Inputs by name, and whether they are 64 bits wide.
    inputs: Vec<(String, Input, bool)>,
    settings: GraphSettings,
    fixed_length: Option<usize>,
    bucketing: Bucketing,
    nodes: Vec<ProviderNodes>,
    library: &'static Library,
}

impl OnnxGraph {
    pub(crate) fn open(
        path: Option<&Path>,
        summary: &GraphSummary,
        settings: &GraphSettings,
    ) -> Result<OnnxGraph, String> {
        let library = library(path)?;
        let refused = |e: &dyn std::fmt::Display| {
            let file = summary.path.display();
            format!("ONNX Runtime {} cannot open {file} on {}: {e}", library.version, settings.provider)
        };
        let provider = provider(settings.provider, library)?;
        let build = || -> ort::Result<Session> {
            let mut builder = configured(library, settings)?;
            if let Some(provider) = provider {
                builder = builder.with_execution_providers([provider])?;
                if !settings.allow_host {
                    builder = builder.with_disable_cpu_fallback()?;
                }
            }
            builder.commit_from_file(&summary.path)
        };
        let session = build().map_err(|e| refused(&e))?;
        let inputs = session.inputs().iter().map(|input| known(input.name(), input.dtype()));
        let inputs = inputs.collect::<Result<Vec<_>, _>>().map_err(|e| refused(&e))?;
        let options = RunOptions::new().map_err(|e| refused(&e))?;
        let options = options.with_outputs(OutputSelector::no_default().with(&settings.output));
        let nodes = nodes::assigned(&session).map_err(|e| refused(&e))?;
        let bucketing = Bucketing {
            width: settings.width,
            is_per_token: settings.is_per_token,
            one_per_call: settings.one_per_call,
            is_unmasked: !inputs.iter().any(|(_, input, _)| *input == Input::Mask),
        };
        Ok(OnnxGraph {
            session: RefCell::new(session),
            options,
            inputs,
            settings: settings.clone(),
            fixed_length: summary.fixed_length(),
            bucketing,
            nodes,
            library,
        })
    }

    fn call(
        &self,
        texts: &[GraphText<'_>],
        indices: &[usize],
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), String> {
        let members: Vec<GraphText<'_>> = indices.iter().map(|i| texts[*i]).collect();
        let mut padded = pad(&members, self.fixed_length, self.settings.padding);
        let (count, length) = (padded.texts, padded.length);
        let inputs = self.inputs.iter().map(|(name, input, is_wide)| {
            let value = upload(input.take(&mut padded), [count, length], *is_wide)?;
            Ok((Cow::from(name.as_str()), value))
        });
        let inputs = inputs.collect::<ort::Result<Vec<_>>>().map_err(|e| e.to_string())?;
        let mut session = self.session.borrow_mut();
        let outputs = session.run_with_options(inputs, &self.options).map_err(|e| e.to_string())?;
        let output = outputs.get(&self.settings.output).ok_or("the graph did not compute its output")?;
        let (dims, values) = floats(output)?;
        let width = self.settings.width;
        let wanted = if self.settings.is_per_token { vec![count, length, width] } else { vec![count, width] };
        // One score per text may have no dimension of its own.
        if dims != wanted && !(width == 1 && dims == wanted[..wanted.len() - 1]) {
            let name = &self.settings.output;
            return Err(format!("the graph's output {name} has the shape {dims:?} instead of {wanted:?}"));
        }
        for (place, (index, text)) in indices.iter().zip(&members).enumerate() {
            let (start, rows) = match self.settings.is_per_token {
                true => (place * length, text.ids.len()),
                false => (place, 1),
            };
            sink(*index, &values[start * width..(start + rows) * width]);
        }
        Ok(())
    }
}

impl Graph for OnnxGraph {
    fn run(&self, texts: &[GraphText<'_>], sink: &mut dyn FnMut(usize, &[f32])) -> Result<u64, String> {
        let lengths: Vec<usize> = texts.iter().map(|text| text.ids.len()).collect();
        let calls = self.bucketing.calls(&lengths);
        calls.iter().try_for_each(|call| self.call(texts, call, sink))?;
        Ok(calls.len() as u64)
    }

    fn nodes(&self) -> Vec<ProviderNodes> {
        self.nodes.clone()
    }

    fn version(&self) -> String {
        self.library.version.clone()
    }
}

/// A builder with threads and memory as Sconce wants them.
fn configured(library: &Library, settings: &GraphSettings) -> ort::Result<SessionBuilder> {
    Ok(Session::builder(&library.environment)?
        .with_intra_threads(settings.threads)?
        .with_inter_threads(1)?
        // A server's threads must not burn the processor between requests.
        .with_intra_op_spinning(false)?
        // A pattern is kept for every shape of a batch, and there is no end of shapes.
        .with_memory_pattern(false)?
        .with_config_entry("session.record_ep_graph_assignment_info", "1")?)
}

/// The provider to register; `None` for the CPU's, which every session has.
fn provider(provider: Provider, library: &Library) -> Result<Option<ExecutionProviderDispatch>, String> {
    let (name, available, dispatch) = match provider {
        Provider::Cpu => return Ok(None),
        Provider::Cuda(n) => {
            let cuda = ep::CUDA::default().with_device_id(i32::try_from(n).unwrap_or(i32::MAX));
            (ep::CUDA::NAME, ep::CUDA::is_available(), cuda.build())
        }
        Provider::CoreMl => (ep::CoreML::NAME, ep::CoreML::is_available(), ep::CoreML::default().build()),
        Provider::DirectMl => (ep::DirectML::NAME, ep::DirectML::is_available(), ep::DirectML::default().build()),
    };
    match available {
        Ok(true) => Ok(Some(dispatch.error_on_failure())),
        Ok(false) => {
            let package = match provider {
                Provider::Cuda(_) => "install the package onnxruntime-gpu instead",
                Provider::CoreMl => "it is in the package onnxruntime for macOS",
                Provider::DirectMl | Provider::Cpu => "it is in the package onnxruntime-directml for Windows",
            };
            let (version, path) = (&library.version, library.path.display());
            Err(format!(
                "ONNX Runtime {version} at {path} has no {name}: {package}, or choose --device cpu or --engine native"
            ))
        }
        Err(e) => Err(e.to_string()),
    }
}

/// An input that we can fill.
fn known(name: &str, kind: &ValueType) -> Result<(String, Input, bool), String> {
    let input = match name {
        "input_ids" => Input::Ids,
        "attention_mask" => Input::Mask,
        "token_type_ids" => Input::Types,
        "position_ids" => Input::Positions,
        other => return Err(format!("its input `{other}` is not one of an encoder of texts")),
    };
    match kind {
        ValueType::Tensor { ty: TensorElementType::Int64, .. } => Ok((name.into(), input, true)),
        ValueType::Tensor { ty: TensorElementType::Int32, .. } => Ok((name.into(), input, false)),
        other => Err(format!("its input `{name}` is {other:?}, not integers")),
    }
}

impl Input {
    fn take(self, padded: &mut Padded) -> Vec<i64> {
        std::mem::take(match self {
            Input::Ids => &mut padded.ids,
            Input::Mask => &mut padded.mask,
            Input::Types => &mut padded.types,
            Input::Positions => &mut padded.positions,
        })
    }
}

fn upload(values: Vec<i64>, dims: [usize; 2], is_wide: bool) -> ort::Result<SessionInputValue<'static>> {
    Ok(match is_wide {
        true => Tensor::from_array((dims, values))?.into(),
        false => {
            // Ids are below the size of a vocabulary, which 32 bits hold.
            let narrow: Vec<i32> = values.into_iter().map(|value| value as i32).collect();
            Tensor::from_array((dims, narrow))?.into()
        }
    })
}

/// The shape and the values of an output in f32 or f16.
fn floats(output: &DynValue) -> Result<(Vec<usize>, Cow<'_, [f32]>), String> {
    let dims = |shape: &ort::value::Shape| shape.iter().map(|n| usize::try_from(*n).unwrap_or(0)).collect();
    if let Ok((shape, values)) = output.try_extract_tensor::<f32>() {
        return Ok((dims(shape), values.into()));
    }
    let (shape, values) = output.try_extract_tensor::<f16>().map_err(|e| format!("{e}; outputs are f32 or f16"))?;
    Ok((dims(shape), values.iter().map(|value| value.to_f32()).collect()))
}

mod nodes {
    //! Which provider has which nodes, from ONNX Runtime's own record. `ort` does not wrap it.
    #![allow(unsafe_code, reason = "calls ONNX Runtime's C API")]

    use ort::session::Session;
    use ort::{AsPointer, ortsys};
    use sconce_engine::ProviderNodes;
    use std::collections::BTreeMap;
    use std::ffi::{CStr, c_char};
    use std::ptr;

    /// The nodes of an opened session by provider and operator.
    pub(super) fn assigned(session: &Session) -> ort::Result<Vec<ProviderNodes>> {
        let mut counts: BTreeMap<(String, String), u64> = BTreeMap::new();
        let (mut subgraphs, mut count) = (ptr::null(), 0);
        // The session is open and recorded its assignment; the arrays and strings that these calls
        // return belong to it and live as long.
        ortsys![unsafe Session_GetEpGraphAssignmentInfo(session.ptr(), &mut subgraphs, &mut count)?];
        // SAFETY: the call above set both.
        for subgraph in unsafe { slice(subgraphs, count) } {
            let mut provider = ptr::null();
            ortsys![unsafe EpAssignedSubgraph_GetEpName(*subgraph, &mut provider)?];
            let (mut nodes, mut count) = (ptr::null(), 0);
            ortsys![unsafe EpAssignedSubgraph_GetNodes(*subgraph, &mut nodes, &mut count)?];
            // SAFETY: the call above set both.
            for node in unsafe { slice(nodes, count) } {
                let mut operator = ptr::null();
                ortsys![unsafe EpAssignedNode_GetOperatorType(*node, &mut operator)?];
                // SAFETY: the calls above set them to strings of the session.
                let key = unsafe { (text(operator), text(provider)) };
                *counts.entry(key).or_default() += 1;
            }
        }
        let node = |((operator, provider), nodes)| ProviderNodes { operator, provider, nodes };
        Ok(counts.into_iter().map(node).collect())
    }

    /// # Safety
    /// `start` is null or points to `count` pointers.
    unsafe fn slice<'a, T>(start: *const *const T, count: usize) -> &'a [*const T] {
        // SAFETY: as the caller promises.
        if start.is_null() { &[] } else { unsafe { std::slice::from_raw_parts(start, count) } }
    }

    /// # Safety
    /// `text` is null or a string that ends with a zero.
    unsafe fn text(text: *const c_char) -> String {
        // SAFETY: as the caller promises.
        if text.is_null() { String::new() } else { unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned() }
    }
}
