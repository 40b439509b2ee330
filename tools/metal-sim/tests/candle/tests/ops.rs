//! The tensor ops that composed ops are made of, on the simulated device. The expectation is the CPU backend in f32 on
//! the same rounded inputs; the tolerance is a few roundings of the format to the largest value.

use candle_core::{D, DType, Device, Result, Tensor};
use metal_sim_candle::scale::{SOURCE, Scale};
use metal_sim_candle::{assert_close, dispatches, metal, warnings};

/// Each format, with half an ulp at 1.
const FORMATS: [(DType, f64); 3] = [(DType::F32, 6e-8), (DType::F16, 4.9e-4), (DType::BF16, 3.9e-3)];

fn samples(shape: &[usize], seed: u32) -> Result<Tensor> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        (state >> 8) as f32 / (1 << 22) as f32 - 2.0
    };
    Tensor::from_iter((0..shape.iter().product()).map(|_| next()), &Device::Cpu)?.reshape(shape)
}

/// Runs `op` on both devices in every format; `ulps` is how many roundings the result may be off.
fn check(what: &str, inputs: &[Tensor], ulps: f64, op: impl Fn(&[Tensor]) -> Result<Tensor>) -> Result<()> {
    let device = metal();
    for (format, ulp) in FORMATS {
        let rounded: Vec<Tensor> = inputs.iter().map(|x| x.to_dtype(format)).collect::<Result<_>>()?;
        let on_metal: Vec<Tensor> = rounded.iter().map(|x| x.to_device(&device)).collect::<Result<_>>()?;
        let on_cpu: Vec<Tensor> = rounded.iter().map(|x| x.to_dtype(DType::F32)).collect::<Result<_>>()?;
        assert_close(&format!("{what} {format:?}"), &op(&on_metal)?, &op(&on_cpu)?, ulps * ulp)?;
    }
    Ok(())
}

#[test]
fn the_simulated_device_is_what_runs() -> Result<()> {
    let before = dispatches("uexp_f32") + dispatches("exp_f32");
    let y = samples(&[4], 1)?.to_device(&metal())?.exp()?;
    y.to_device(&Device::Cpu)?;
    assert_eq!(dispatches("uexp_f32") + dispatches("exp_f32"), before + 1);
    assert_eq!(dispatches("absent"), 0);
    Ok(())
}

#[test]
fn unary() -> Result<()> {
    let x = [samples(&[3, 37], 2)?];
    check("exp", &x, 4.0, |x| x[0].exp())?;
    check("tanh", &x, 4.0, |x| x[0].tanh())?;
    check("gelu", &x, 8.0, |x| x[0].gelu())?;
    check("gelu_erf", &x, 16.0, |x| x[0].gelu_erf())?;
    check("erf", &x, 16.0, |x| x[0].erf())?;
    check("silu", &x, 8.0, |x| x[0].silu())?;
    check("relu", &x, 0.0, |x| x[0].relu())?;
    check("sqrt of abs", &x, 4.0, |x| x[0].abs()?.sqrt())?;
    check("recip", &x, 8.0, |x| (x[0].abs()? + 1.0)?.recip())?;
    check("affine", &x, 4.0, |x| x[0].affine(1.5, -0.25))?;
    check("strided", &x, 4.0, |x| x[0].t()?.exp())
}

#[test]
fn binary() -> Result<()> {
    let x = [samples(&[3, 37], 3)?, samples(&[1, 37], 4)?, samples(&[3, 1], 5)?];
    check("add", &x, 2.0, |x| x[0].broadcast_add(&x[1]))?;
    check("sub", &x, 2.0, |x| x[0].broadcast_sub(&x[2]))?;
    check("mul", &x, 2.0, |x| x[0].broadcast_mul(&x[1]))?;
    check("div", &x, 8.0, |x| x[0].broadcast_div(&(x[1].abs()? + 1.0)?))?;
    check("add, same shape", &x, 2.0, |x| &x[0] + &x[0])
}

#[test]
fn reduce() -> Result<()> {
    let x = [samples(&[5, 3, 67], 6)?];
    check("sum", &x, 16.0, |x| x[0].sum_keepdim(D::Minus1))?;
    check("sum, strided", &x, 8.0, |x| x[0].transpose(0, 2)?.sum_keepdim(D::Minus1))?;
    check("mean", &x, 64.0, |x| x[0].mean_keepdim(D::Minus1))?;
    check("max", &x, 0.0, |x| x[0].max_keepdim(D::Minus1))
}

#[test]
fn softmax_as_composed() -> Result<()> {
    check("softmax", &[samples(&[4, 65], 7)?], 16.0, |x| {
        let shifted = x[0].broadcast_sub(&x[0].max_keepdim(D::Minus1)?)?.exp()?;
        shifted.broadcast_div(&shifted.sum_keepdim(D::Minus1)?)
    })
}

#[test]
fn matmul() -> Result<()> {
    let x =
        [samples(&[2, 33, 50], 8)?, samples(&[2, 50, 70], 9)?, samples(&[2, 70, 50], 10)?, samples(&[2, 1, 50], 11)?];
    check("matmul", &x, 16.0, |x| x[0].matmul(&x[1]))?;
    check("matmul, transposed", &x, 16.0, |x| x[0].matmul(&x[2].transpose(1, 2)?))?;
    check("vector by matrix", &x, 16.0, |x| x[3].matmul(&x[1]))
}

#[test]
fn movement() -> Result<()> {
    let x = [samples(&[2, 9, 24], 12)?];
    check("index_select", &x, 0.0, |x| x[0].index_select(&Tensor::new(&[3u32, 0, 8, 8], x[0].device())?, 1))?;
    check("transpose, contiguous", &x, 0.0, |x| x[0].transpose(1, 2)?.contiguous())?;
    check("narrow, contiguous", &x, 0.0, |x| x[0].narrow(1, 2, 5)?.contiguous())?;
    check("cat", &x, 0.0, |x| Tensor::cat(&[&x[0], &x[0].affine(-1.0, 0.0)?], 2))?;
    check("zeros and ones", &x, 0.0, |x| Tensor::cat(&[x[0].zeros_like()?, x[0].ones_like()?], 0))?;
    check("where", &x, 0.0, |x| x[0].ge(0.0)?.where_cond(&x[0], &x[0].zeros_like()?))
}

#[test]
fn casts_round_to_nearest_even() -> Result<()> {
    let (device, x) = (metal(), samples(&[257], 13)?);
    for (from, _) in FORMATS {
        for (to, _) in FORMATS {
            let source = x.to_dtype(from)?;
            let got = source.to_device(&device)?.to_dtype(to)?;
            assert_eq!(got.dtype(), to);
            // through f32, which holds both exactly
            assert_close(&format!("{from:?} to {to:?}"), &got, &source.to_dtype(DType::F32)?.to_dtype(to)?, 0.0)?;
        }
    }
    Ok(())
}

#[test]
fn a_kernel_of_our_own() -> Result<()> {
    let x = samples(&[3000], 14)?;
    let on_metal = x.to_device(&metal())?;
    // Reads its input while it is still being computed, unless the encoder orders the two.
    let y = on_metal.exp()?.apply_op1_no_bwd(&Scale(0.5))?;
    assert_close("scale", &y, &(x.exp()? * 0.5)?, 4.0 * 6e-8)?;
    assert_eq!(dispatches("scale_f32"), 1);
    assert!(!warnings().contains("scale_f32:"), "{}", warnings());
    Ok(())
}

#[test]
fn a_source_that_was_not_compiled_is_refused() {
    let device = metal();
    let device = device.as_metal_device().unwrap().metal_device();
    let error = device.new_library_with_source(&format!("{SOURCE} "), None).unwrap_err();
    assert!(error.to_string().contains("has exactly this source"), "{error}");
}
