//! A task runs one direction of up to four sequences, token by token. A vector of units has its four
//! gates in registers during the loop over h; the sequences of a task share each weight that is
//! read, because the weights do not fit into the L1 cache.
#![allow(unsafe_code, reason = "SIMD lanes; tasks write disjoint parts of one result")]

use super::{GATES, LstmOp, UNITS};
use crate::cpu::elem::{Elem, get, put, with_elem};
use crate::cpu::rows::{Output, Reading, Rows};
use crate::cpu::{Isa, Kernel, Lanes, math, team};
use crate::tensor::{host, room};
use crate::{Activation, DType, Result, threads};
use std::ops::Range;

/// Most sequences of a task: their sums fit into the registers.
pub(super) const MOST: usize = 4;

pub(super) fn run(op: &LstmOp, isa: Isa) -> Result<candle_core::Tensor> {
    with_elem!("lstm", op.x.dtype(), T => {
        let (x, w) = (Reading::of(&op.x)?, Reading::of(&op.recurrent)?);
        let (x, w) = (x.rows::<T>()?, w.slice::<T>()?);
        let sequences: Vec<Range<usize>> = op.segments.lengths(op.scope).iter().collect();
        let mut y = room::<T>(op.segments.tokens() * 2 * op.hidden);
        let out = Output::over(&mut y);
        // As few sequences per task as keep all threads busy. A sequence's sums have the same order
        // in every task.
        let group = (2 * sequences.len() / threads::count().max(1)).clamp(1, MOST);
        let groups: Vec<_> = sequences.chunks(group).collect();
        team::each(2 * groups.len(), |task| {
            let direction = task % 2;
            let w = &w[direction * w.len() / 2..][..w.len() / 2];
            isa.run(Direction { x, w, direction, hidden: op.hidden, sequences: groups[task / 2], out: &out });
        });
        host(y, &[op.segments.tokens(), 2 * op.hidden])
    })
}

/// One direction of some sequences.
struct Direction<'a, T> {
    x: Rows<'a, T>,
    w: &'a [T],
    direction: usize,
    hidden: usize,
    sequences: &'a [Range<usize>],
    out: &'a Output<T>,
}

/// h, the next h and c of a sequence, padded to whole panels.
struct State {
    h: Vec<f32>,
    next: Vec<f32>,
    c: Vec<f32>,
}

impl<T: Elem> Kernel for Direction<'_, T> {
    type Output = ();
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let zeros = || vec![0f32; self.hidden.next_multiple_of(UNITS)];
        let mut states: Vec<State> =
            self.sequences.iter().map(|_| State { h: zeros(), next: zeros(), c: zeros() }).collect();
        let longest = self.sequences.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
        for step in 0..longest {
            // The sequences that have a token left, and its row.
            let (mut active, mut tokens, mut count) = ([0; MOST], [0; MOST], 0);
            for (i, range) in self.sequences.iter().enumerate().filter(|(_, range)| step < range.len()) {
                active[count] = i;
                tokens[count] = if self.direction == 0 { range.start + step } else { range.end - 1 - step };
                count += 1;
            }
            match count {
                1 => self.step::<S, 1>(&mut states, &active, &tokens),
                2 => self.step::<S, 2>(&mut states, &active, &tokens),
                3 => self.step::<S, 3>(&mut states, &active, &tokens),
                _ => self.step::<S, 4>(&mut states, &active, &tokens),
            }
        }
    }
}

impl<T: Elem> Direction<'_, T> {
    /// A token of `R` sequences.
    #[inline(always)]
    fn step<S: Lanes, const R: usize>(&self, states: &mut [State], active: &[usize; MOST], tokens: &[usize; MOST]) {
        let n = self.hidden;
        for (panel, w) in self.w.chunks_exact(n * GATES * UNITS).enumerate() {
            for lane in (0..UNITS).step_by(S::WIDTH) {
                let unit = panel * UNITS + lane;
                if unit >= n {
                    break;
                }
                let lanes = S::WIDTH.min(n - unit);
                // SAFETY: the contract of Lanes, kept by Isa::run; a row of the panel has GATES ·
                // UNITS elements, and every h has `n`.
                unsafe {
                    let mut sums = [[S::splat(0.0); GATES]; R];
                    for k in 0..n {
                        let w = w.as_ptr().add(k * GATES * UNITS + lane);
                        for gate in 0..GATES {
                            let w = T::load::<S>(w.add(gate * UNITS));
                            for (r, sums) in sums.iter_mut().enumerate() {
                                let h = *states.get_unchecked(active[r]).h.get_unchecked(k);
                                sums[gate] = S::fma(S::splat(h), w, sums[gate]);
                            }
                        }
                    }
                    for (r, mut gates) in sums.into_iter().enumerate() {
                        let own = &self.x.row(tokens[r])[self.direction * GATES * n..][..GATES * n];
                        for (gate, sum) in gates.iter_mut().enumerate() {
                            *sum = S::add(*sum, get::<S, T>(own, gate * n + unit, lanes, 0.0));
                        }
                        let [i, f, g, o] = gates;
                        let [i, f, o] = math::activate::<S, 3>(Activation::Sigmoid, DType::F32, [i, f, o]);
                        let [g] = math::tanh::<S, 1>([g]);
                        let State { next, c, .. } = &mut states[active[r]];
                        let cell = S::fma(f, get::<S, f32>(c, unit, lanes, 0.0), S::mul(i, g));
                        put::<S, f32>(c, unit, lanes, cell);
                        let [squashed] = math::tanh::<S, 1>([cell]);
                        let h = S::mul(o, squashed);
                        put::<S, f32>(next, unit, lanes, h);
                        // These units of this token belong to this task alone.
                        let out = self.out.part(tokens[r] * 2 * n + self.direction * n + unit, lanes);
                        put::<S, T>(out, 0, lanes, h);
                    }
                }
            }
        }
        for i in &active[..R] {
            let State { h, next, .. } = &mut states[*i];
            std::mem::swap(h, next);
        }
    }
}
