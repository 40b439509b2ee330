//! Each operation against its formula in f64, in every float dtype; refusals; counts and ledger.

use super::*;

/// References in f64, of one argument and of two.
type Function = fn(f64) -> f64;
type Function2 = fn(f64, f64) -> f64;

const DIMS: [usize; 2] = [3, 4];

fn cpu() -> Arc<EagerDevice> {
    EagerDevice::open(Device::Cpu).unwrap()
}

fn array(values: &[f64], dims: &[usize], dtype: DType, on: &Arc<EagerDevice>) -> Array {
    Array::from_f64(values, dims, dtype, on).unwrap()
}

/// Numbers from 0.5 to 3.3, which every function here is defined for.
fn numbers(seed: usize) -> Vec<f64> {
    (0..12).map(|i| 0.5 + ((i * 7 + seed * 5) % 12) as f64 / 4.0 + seed as f64 / 64.0).collect()
}

/// Compares with the formula; `roundings` counts those of one element, inputs included.
fn close(name: &str, got: &Array, want: &[f64], roundings: f64) {
    let tolerance = roundings * got.dtype().unit_roundoff();
    for (g, w) in got.to_f64().unwrap().iter().zip(want) {
        assert!((g - w).abs() <= tolerance * w.abs().max(1.0), "{name} in {}: {g}, not {w}", got.dtype());
    }
    assert_eq!(got.len(), want.len(), "{name}");
}

#[test]
fn elementwise_functions_equal_their_formula() {
    let on = cpu();
    for dtype in [DType::F64, DType::F32, DType::BF16, DType::F16] {
        let (x, y) = (array(&numbers(1), &DIMS, dtype, &on), array(&numbers(2), &DIMS, dtype, &on));
        // As rounded to the dtype.
        let (a, b) = (x.to_f64().unwrap(), y.to_f64().unwrap());
        let unary: [(Unary, Function); 8] = [
            (Unary::Sin, f64::sin),
            (Unary::Cos, f64::cos),
            (Unary::Log, f64::ln),
            (Unary::Sqr, |v| v * v),
            (Unary::Sqrt, f64::sqrt),
            (Unary::Recip, f64::recip),
            (Unary::Exp, f64::exp),
            (Unary::Pow(2.5), |v| v.powf(2.5)),
        ];
        for (function, formula) in unary {
            let want: Vec<f64> = a.iter().map(|v| formula(*v)).collect();
            close(function.name(), &x.unary(function).unwrap(), &want, 4.0);
        }
        let binary: [(Binary, Function2); 4] = [
            (Binary::Add, |v, w| v + w),
            (Binary::Sub, |v, w| v - w),
            (Binary::Mul, |v, w| v * w),
            (Binary::Div, |v, w| v / w),
        ];
        for (with, formula) in binary {
            let want: Vec<f64> = a.iter().zip(&b).map(|(v, w)| formula(*v, *w)).collect();
            close(with.name(), &x.binary(with, &y).unwrap(), &want, 2.0);
            let want: Vec<f64> = a.iter().map(|v| formula(*v, 1.5)).collect();
            close(with.name(), &x.scalar(with, 1.5).unwrap(), &want, 2.0);
            // A column and a row make a matrix.
            let (column, row) = (x.narrow(1, 0, 1).unwrap(), y.get(0).unwrap());
            let want: Vec<f64> = (0..12).map(|i| formula(a[i / 4 * 4], b[i % 4])).collect();
            let got = column.broadcast(with, &row).unwrap();
            assert_eq!(got.dims(), DIMS);
            close(with.name(), &got, &want, 2.0);
        }
    }
}

#[test]
fn products_and_reductions_equal_their_formula() {
    let on = cpu();
    for dtype in [DType::F64, DType::F32, DType::BF16, DType::F16] {
        let (x, y) = (array(&numbers(1), &DIMS, dtype, &on), array(&numbers(2), &DIMS, dtype, &on));
        let (a, b) = (x.to_f64().unwrap(), y.to_f64().unwrap());
        let dot = |i: usize, j: usize| (0..4).map(|k| a[i * 4 + k] * b[j * 4 + k]).sum::<f64>();
        let want: Vec<f64> = (0..9).map(|n| dot(n / 3, n % 3)).collect();
        let product = x.matmul(&y.t().unwrap()).unwrap();
        assert_eq!(product.dims(), [3, 3]);
        close("matmul", &product, &want, 4.0);
        let columns: Vec<Vec<f64>> = (0..4).map(|j| (0..3).map(|i| a[i * 4 + j]).collect()).collect();
        let of = |f: &dyn Fn(&Vec<f64>) -> f64| columns.iter().map(f).collect::<Vec<_>>();
        let place = |v: &Vec<f64>, best: f64| v.iter().position(|x| *x == best).unwrap() as f64;
        let (max, min) = (
            |v: &Vec<f64>| v.iter().copied().fold(f64::MIN, f64::max),
            |v: &Vec<f64>| v.iter().copied().fold(f64::MAX, f64::min),
        );
        let sum = |v: &Vec<f64>| v.iter().sum::<f64>();
        for (reduction, want) in [
            (Reduction::Sum, of(&sum)),
            (Reduction::Mean, of(&|v| sum(v) / 3.0)),
            (Reduction::Max, of(&max)),
            (Reduction::Min, of(&min)),
            (Reduction::ArgMax, of(&|v| place(v, max(v)))),
            (Reduction::ArgMin, of(&|v| place(v, min(v)))),
        ] {
            let got = x.reduce(reduction, 0, true).unwrap();
            assert_eq!(got.dims(), [1, 4]);
            close(reduction.name(), &got, &want, 4.0);
            assert_eq!(x.reduce(reduction, 0, false).unwrap().dims(), [4]);
            // A transposed view has gaps.
            close(reduction.name(), &x.t().unwrap().reduce(reduction, 1, false).unwrap(), &want, 4.0);
        }
        close("sum", &x.reduce_all(Reduction::Sum).unwrap(), &[a.iter().sum()], 12.0);
        close("mean", &x.reduce_all(Reduction::Mean).unwrap(), &[a.iter().sum::<f64>() / 12.0], 12.0);
    }
}

#[test]
fn selections_and_views_have_the_right_elements() {
    let on = cpu();
    let x = array(&(0..12).map(f64::from).collect::<Vec<_>>(), &DIMS, DType::F32, &on);
    let rows = array(&[2.0, 0.0, 2.0], &[3], DType::I64, &on);
    assert_eq!(x.index_select(&rows, 0).unwrap().get(1).unwrap().to_f64().unwrap(), [0., 1., 2., 3.]);
    let even = array(&[1., 0., 1.], &[3], DType::U8, &on);
    let (a, b) = (x.t().unwrap().get(0).unwrap(), array(&[-1.; 3], &[3], DType::F32, &on));
    assert_eq!(even.where_cond(&a, &b).unwrap().to_f64().unwrap(), [0., -1., 8.]);
    assert_eq!(x.t().unwrap().strides(), [1, 4]);
    assert!(x.t().unwrap().is_fortran_contiguous() && !x.t().unwrap().is_contiguous());
    assert_eq!(x.t().unwrap().flatten(0, 1).unwrap().to_f64().unwrap()[..4], [0., 4., 8., 1.]);
    assert_eq!(x.narrow(1, 2, 2).unwrap().to_f64().unwrap(), [2., 3., 6., 7., 10., 11.]);
    assert_eq!(x.unsqueeze(0).unwrap().squeeze(0).unwrap().dims(), DIMS);
    assert_eq!(x.broadcast_left(&[2]).unwrap().dims(), [2, 3, 4]);
    assert_eq!(x.to_dtype(DType::U8).unwrap().to_dtype(DType::F64).unwrap().to_f64().unwrap()[11], 11.0);
    let ints = array(&[7., -3.], &[2], DType::I64, &on);
    assert_eq!(ints.scalar(Binary::Mul, 3.0).unwrap().to_f64().unwrap(), [21., -9.]);
    assert!(Array::rand(&[100], &on).unwrap().to_f64().unwrap().iter().all(|v| (0.0..1.0).contains(v)));
    let normal = Array::randn(&[10_000], &on).unwrap().reduce_all(Reduction::Mean).unwrap().to_f64().unwrap();
    assert!(normal[0].abs() < 0.1, "{normal:?}");
}

#[test]
fn impossible_calls_are_errors_with_a_reason() {
    let on = cpu();
    let x = array(&numbers(1), &DIMS, DType::F32, &on);
    let ints = array(&[1., 0., 2.], &[3], DType::U32, &on);
    let refused = |result: Result<Array>, why: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    refused(ints.unary(Unary::Sqrt), "takes floats, not u32");
    refused(ints.reduce(Reduction::Mean, 0, false), "takes floats");
    refused(ints.scalar(Binary::Div, 0.5), "not a number that u32 can hold");
    refused(ints.scalar(Binary::Sub, -1.0), "not a number that u32 can hold");
    refused(ints.binary(Binary::Div, &array(&[0.; 3], &[3], DType::U32, &on)), "divided by zero");
    refused(x.binary(Binary::Add, &x.t().unwrap()), "differ");
    refused(x.broadcast(Binary::Add, &x.t().unwrap()), "cannot be broadcast together");
    refused(x.matmul(&x), "cannot be multiplied");
    refused(x.index_select(&array(&[3.], &[1], DType::U32, &on), 0), "index 3 is outside");
    refused(x.index_select(&array(&[-1.], &[1], DType::I64, &on), 0), "index -1 is outside");
    refused(x.where_cond(&x, &x), "condition of integers");
    refused(x.reduce(Reduction::Sum, 2, false), "no axis 2");
    refused(x.narrow(0, usize::MAX, 2), "no 2 entries");
    refused(x.reshape(&[5]), "does not hold as many");
    refused(x.reshape(&[usize::MAX, 2]), "too large");
    refused(Array::from_f64(&[1.0], &[2], DType::F32, &on), "do not fill");
    refused(Array::from_f64(&[0.5], &[1], DType::I64, &on), "not a number that i64 can hold");
    refused(Array::full(0.0, &[1 << 40, 1 << 40], DType::F32, &on), "too large");
    refused(Array::full(0.0, &[1 << 45], DType::F32, &on), "free");
    refused(x.get(0).unwrap().get(0).unwrap().broadcast_as(&[1 << 45]).unwrap().copy(), "free");
    refused(x.binary(Binary::Add, &array(&numbers(1), &DIMS, DType::F32, &cpu())), "another on cpu");
}

#[test]
fn computation_is_counted_and_views_are_not() {
    let on = cpu();
    let counts = |op: &str| {
        let of = on.ladder().counts().into_iter().filter(|(c, _)| c.op == op && c.rung == Rung::Composed);
        of.map(|(_, n)| n).sum::<u64>()
    };
    let x = array(&numbers(1), &DIMS, DType::F32, &on);
    assert_eq!(on.ladder().ledger.live(), 48);
    let view = x.t().unwrap().narrow(0, 1, 2).unwrap().unsqueeze(0).unwrap();
    assert_eq!((on.ladder().ledger.live(), on.ladder().counts().len()), (48, 1));
    drop(x);
    assert_eq!(on.ladder().ledger.live(), 48);
    drop(view.reshape(&[6]).unwrap());
    assert_eq!(counts("copy"), 1);
    drop(view.unary(Unary::Exp).unwrap().unary(Unary::Exp).unwrap());
    assert_eq!(counts("exp"), 2);
    drop(view);
    assert_eq!(on.ladder().ledger.live(), 0);
}
