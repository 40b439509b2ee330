//! Which rung takes a call, and what happens when a rung fails, tested with an op that has as few
//! rungs as possible.

use super::*;

/// An op without a GPU kernel and without a composed form on GPUs.
struct Lacking(Tensor);

impl Op for Lacking {
    const NAME: &'static str = "lacking";
    fn x(&self) -> &Tensor {
        &self.0
    }
    fn out(&self) -> (Vec<usize>, DType) {
        (self.0.dims().to_vec(), self.0.dtype())
    }
    fn detail(&self) -> String {
        String::new()
    }
    fn fused(&self, device: Device) -> Can {
        if device.is_gpu() { Can::no("no kernel of ours") } else { Can::Yes }
    }
    fn composable(&self, device: Device) -> Can {
        if device.is_gpu() { Can::no("Candle lacks it") } else { Can::Yes }
    }
    fn cpu(&self, _: Isa) -> Result<candle_core::Tensor> {
        Ok(self.0.candle()?.clone())
    }
    fn composed(&self) -> Result<candle_core::Tensor> {
        Err(Error::call("lacking", "broken on purpose"))
    }
    fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(Lacking(to(&self.0)?))
    }
}

fn step(policy: Policy, device: Device) -> Step {
    let (_, steps) = Ladder::new(policy).trace(|| {
        let _at = at("layer", 3);
        run(Lacking(Tensor::phantom(&[2], DType::BF16, device))).map(drop)
    });
    steps[0].clone()
}

fn call(policy: Policy) -> (Result<Tensor>, Vec<(Counted, u64)>) {
    let ladder = Ladder::new(policy);
    let _here = ladder.clone().enter();
    let x = Tensor::from_f32(&[1.0], &[1], DType::F32, &Place::cpu());
    (x.and_then(|x| run(Lacking(x))), ladder.counts())
}

#[test]
fn host_rung_on_a_gpu_needs_permission() {
    let refused = step(Policy::default(), Device::Metal(0));
    let why = refused.rung.expect_err("refused");
    assert!(
        why.contains("no kernel of ours") && why.contains("Candle lacks it") && why.contains("--allow-host"),
        "{why}"
    );
    assert_eq!(refused.at, "layer 3");
    let allowed = step(Policy { allow_host: true, ..Policy::default() }, Device::Metal(0));
    assert_eq!(allowed.rung, Ok(Rung::Host));
    assert_eq!(step(Policy::default(), Device::Cpu).rung, Ok(Rung::Fused));
}

#[test]
fn missing_instruction_set_is_an_error() {
    let missing = if cfg!(target_arch = "aarch64") { Isa::Avx2 } else { Isa::Neon };
    let (result, _) = call(Policy { isa: Some(missing), ..Policy::default() });
    assert!(result.expect_err("refused").to_string().contains("this processor has no"));
}

#[test]
fn failing_rung_is_an_error_and_not_counted() {
    let (result, counts) = call(Policy { force: Some(Rung::Composed), ..Policy::default() });
    let error = result.expect_err("broken").to_string();
    assert!(error.contains("composed rung failed") && error.contains("broken on purpose"), "{error}");
    assert!(counts.is_empty());
    let (result, counts) = call(Policy::default());
    assert!(result.is_ok());
    assert_eq!(counts[0].0.rung, Rung::Fused);
}

#[test]
fn withdrawn_kernels_are_not_used() {
    let withdrawn = |rung| Withdrawn { op: "lacking".into(), kind: "cpu".into(), dtype: DType::F32, rung };
    let both = vec![withdrawn(Rung::Fused), withdrawn(Rung::Composed)];
    let (result, _) = call(Policy { withdrawn: both, ..Policy::default() });
    assert!(result.expect_err("nothing left").to_string().contains("withdrawn"));
    let other = Withdrawn { dtype: DType::F16, ..withdrawn(Rung::Fused) };
    let (result, counts) = call(Policy { withdrawn: vec![other], ..Policy::default() });
    assert!(result.is_ok() && counts[0].0.rung == Rung::Fused);
}
