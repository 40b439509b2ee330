//! Loads a model of any kind: plan, check, load, sanity check, warm-up.

use super::device_thread::panic_message;
use super::executor::Executor;
use super::layer_progress::LayerProgress;
use super::loaded::{Codec, LoadedModel, ModelInfo};
use super::warmup;
use super::workload::{LoadContext, Workload};
use crate::error::{Error, Result};
use crate::options::LoadOptions;
use crate::plan::Plan;
use sconce_hub::{Files, Progress};
use sconce_ops::{Device, Ladder};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;

/// Plans a model on a device that need not be in this machine.
pub(crate) fn plan<W: Workload>(spec: &W::Spec, device: Device, options: &LoadOptions) -> Result<Plan> {
    let options = &device.info().map_or_else(|_| options.clone(), |info| options.for_device(&info));
    Ok(W::plan(spec, device, options)?.plan)
}

/// Loads a model onto the requested device, unless the plan says that it cannot run or does not
/// fit. With `options.fallback` it falls back to the next best device, and reports every fallback.
///
/// `read_text` reads the tokenizer while the weights load: a vocabulary takes a third of the time
/// that a small model's weights take.
pub(crate) fn load<W: Workload, T: Codec + 'static>(
    files: &Files,
    spec: &W::Spec,
    options: &LoadOptions,
    progress: &dyn Progress,
    read_text: impl Fn(&Plan) -> Result<Arc<T>> + Sync,
) -> Result<LoadedModel<W, T>> {
    options.on_candidates(progress, |device| {
        let info = device.info()?;
        let options = options.for_device(&info);
        let planned = W::plan(spec, device, &options)?;
        planned.plan.check(info.free_bytes)?;
        planned.plan.check_engine()?;
        let ladder = Ladder::new(options.policy.clone());
        let (inputs, entered) = ((spec.clone(), planned.clone()), ladder.clone());
        let (reports, layer_counts) = channel();
        let layers = LayerProgress::new(reports);
        let make = move || {
            let context = LoadContext { place: warmup::open(device, &options)?, layers };
            let workload = W::load(&inputs.0, &inputs.1, &context)?;
            context.layers.finish();
            let place = context.place;
            // In a separate ladder, so that the op calls of the check are not counted as a
            // request's.
            let check_ladder = Ladder::new(options.policy.clone()).enter();
            workload.sanity_check()?;
            drop(check_ladder);
            warmup::compile_kernels(&place, &options, workload.step_tokens(), |tokens| workload.dry_run(tokens));
            Ok(workload)
        };
        let (text, executor) = thread::scope(|scope| {
            let text = scope.spawn(|| read_text(&planned.plan));
            scope.spawn(move || layer_counts.iter().for_each(|layers| progress.layers(layers.loaded, layers.total)));
            let executor = Executor::start(device, entered, make);
            (text.join(), executor)
        });
        let text = text.map_err(|panic| Error::Panicked { device, why: panic_message(&*panic) })??;
        let executor = executor?;
        ladder.ledger.hold(planned.plan.bytes());
        let (codec, queue): (Arc<dyn Codec>, _) = (text.clone(), executor.queue_watch());
        let info = ModelInfo { plan: planned.plan, files: files.clone(), ladder, codec, queue };
        Ok(LoadedModel { info, layout: planned.layout, spec: spec.clone(), text, executor })
    })
}
