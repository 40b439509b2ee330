use super::*;
use std::collections::BTreeMap;

/// Pseudo-random numbers in [0, 1).
fn noise(seed: u64) -> impl Iterator<Item = f64> {
    (0..).map(move |i| random::uniform(seed, 77, i))
}

/// Logits like a language model's: few large, many small, some equal.
fn logits(vocabulary: usize, seed: u64) -> Vec<f32> {
    let z = noise(seed)
        .zip(noise(seed + 1_000_000))
        .map(|(a, b)| (-2.0 * (1.0 - a).ln()).sqrt() * (std::f64::consts::TAU * b).cos());
    z.take(vocabulary).map(|z| ((z * 3.0 * 16.0).round() / 16.0) as f32).collect()
}

/// Sampling by definition: f64, everything sorted. Returns the kept tokens and their probabilities,
/// best first.
fn reference(logits: &[f32], params: &GenerationParams, text: Text<'_>, allowed: Option<&[u32]>) -> Vec<(u32, f64)> {
    let mut l: Vec<f64> = logits.iter().map(|x| f64::from(*x)).collect();
    for (id, bias) in &params.logit_bias {
        l[*id as usize] += f64::from(*bias);
    }
    let begin = params.penalty_window.map_or(0, |w| text.tokens.len().saturating_sub(w));
    for (id, l) in l.iter_mut().enumerate() {
        let places: Vec<usize> = (begin..text.tokens.len()).filter(|i| text.tokens[*i] == id as u32).collect();
        let answer = places.iter().filter(|i| **i >= text.prompt).count() as f64;
        let r = f64::from(params.repetition_penalty);
        if !places.is_empty() {
            *l = if *l < 0.0 { *l * r } else { *l / r };
        }
        *l -= f64::from(params.frequency_penalty) * answer;
        *l -= if answer > 0.0 { f64::from(params.presence_penalty) } else { 0.0 };
    }
    let is_allowed = |i: usize| allowed.is_none_or(|a| a[i / 32] >> (i % 32) & 1 == 1);
    let mut kept: Vec<(u32, f64)> = (0..l.len()).filter(|i| is_allowed(*i)).map(|i| (i as u32, l[i])).collect();
    kept.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
    let best = kept[0].1;
    kept.iter_mut().for_each(|k| k.1 = ((k.1 - best) / f64::from(params.temperature)).exp());
    kept.truncate(params.top_k.unwrap_or(u32::MAX) as usize);
    let normalize = |kept: &mut Vec<(u32, f64)>| {
        let sum: f64 = kept.iter().map(|k| k.1).sum();
        kept.iter_mut().for_each(|k| k.1 /= sum);
    };
    normalize(&mut kept);
    let mut before = 0.0;
    let enough = kept.iter().position(|k| {
        before += k.1;
        before - k.1 >= f64::from(params.top_p)
    });
    kept.truncate(enough.unwrap_or(kept.len()).max(1));
    normalize(&mut kept);
    let least = f64::from(params.min_p) * kept[0].1;
    kept.retain(|k| k.1 >= least);
    normalize(&mut kept);
    kept
}

fn parameter_sets() -> Vec<GenerationParams> {
    let p = GenerationParams::default();
    let bias: BTreeMap<u32, f32> = [(3, 5.0), (7, -100.0), (0, 1.5)].into();
    let penalties = GenerationParams {
        repetition_penalty: 1.3,
        frequency_penalty: 0.4,
        presence_penalty: -0.7,
        penalty_window: Some(9),
        ..p.clone()
    };
    vec![
        p.clone(),
        GenerationParams { temperature: 0.3, ..p.clone() },
        GenerationParams { temperature: 5.0, ..p.clone() },
        GenerationParams { top_k: Some(1), ..p.clone() },
        GenerationParams { top_k: Some(7), ..p.clone() },
        GenerationParams { top_k: Some(90), temperature: 2.0, ..p.clone() },
        GenerationParams { top_p: 0.8, ..p.clone() },
        GenerationParams { top_p: 0.99, temperature: 3.0, ..p.clone() },
        GenerationParams { top_p: 0.0, ..p.clone() },
        GenerationParams { min_p: 0.05, ..p.clone() },
        GenerationParams { min_p: 1.0, ..p.clone() },
        GenerationParams { top_k: Some(20), top_p: 0.9, min_p: 0.02, temperature: 0.8, ..p.clone() },
        GenerationParams { top_p: 0.9, min_p: 0.001, temperature: 1.5, ..p.clone() },
        GenerationParams { logit_bias: bias.clone(), ..p.clone() },
        GenerationParams { top_k: Some(30), top_p: 0.95, logit_bias: bias, ..penalties.clone() },
        GenerationParams { penalty_window: None, ..penalties.clone() },
        GenerationParams { repetition_penalty: 0.7, ..penalties },
    ]
}

#[test]
fn sampler_equals_the_reference_implementation() {
    let tokens: Vec<u32> = (0..30).map(|i| i * i % 23).collect();
    for vocabulary in [1, 40, 300, 5000] {
        let mask: Vec<u32> =
            (0..5000u32 / 32 + 1).map(|i| if i % 3 == 0 { u32::MAX } else { i.wrapping_mul(0x9E37_79B9) }).collect();
        for (case, params) in parameter_sets().into_iter().enumerate() {
            if params.check(vocabulary).is_err() {
                continue;
            }
            for seed in 0..40 {
                let params = Arc::new(GenerationParams { seed, ..params.clone() });
                let l = logits(vocabulary, seed * 100 + case as u64);
                let text = Text { tokens: &tokens[..10 + seed as usize % 20], prompt: 8 };
                let allowed = (seed % 4 == 3).then_some(mask.as_slice());
                let choice = Sampler::new(Arc::clone(&params), 0).next(&mut l.clone(), text, allowed).unwrap();
                let distribution = reference(&l, &params, text, allowed);
                let u = random::uniform(seed, 0, text.tokens.len() as u64);
                // The token may be on the other side of a limit by a rounding of f32, but not
                // further.
                let near = 1e-5;
                let mut upto = 0.0;
                let good = distribution.iter().any(|(id, p)| {
                    upto += p;
                    *id == choice.token && upto - p <= u + near && u <= upto + near
                });
                assert!(good, "case {case} of {vocabulary}, seed {seed}: {choice:?} of {} kept", distribution.len());
            }
        }
    }
}

#[test]
fn token_frequencies_match_probabilities() {
    let l = logits(40, 3);
    let draws = 10_000;
    for (case, params) in parameter_sets().into_iter().enumerate() {
        let tokens: Vec<u32> = (0..12).collect();
        let text = Text { tokens: &tokens, prompt: 5 };
        let distribution = reference(&l, &params, text, None);
        let mut counts = [0u32; 40];
        for seed in 0..draws {
            let params = Arc::new(GenerationParams { seed, ..params.clone() });
            counts[Sampler::new(params, 0).next(&mut l.clone(), text, None).unwrap().token as usize] += 1;
        }
        // χ² over the tokens that are expected often enough; the others together.
        let (mut chi, mut freedom, mut few, mut few_expected) = (0.0, 0.0, 0.0, 0.0);
        for (id, p) in &distribution {
            let (seen, expected) = (f64::from(counts[*id as usize]), p * draws as f64);
            if expected < 10.0 {
                few += seen;
                few_expected += expected;
            } else {
                chi += (seen - expected).powi(2) / expected;
                freedom += 1.0;
            }
        }
        if few_expected >= 10.0 {
            chi += (few - few_expected).powi(2) / few_expected;
        }
        let kept: u32 = distribution.iter().map(|(id, _)| counts[*id as usize]).sum();
        assert_eq!(u64::from(kept), draws, "case {case} sampled a token that the reference removes");
        assert!(chi < freedom + 4.0 * f64::sqrt(2.0 * freedom) + 4.0, "case {case}: χ² {chi} of {freedom}");
    }
}

#[test]
fn same_seed_gives_same_tokens_after_preemption() {
    let params = Arc::new(GenerationParams {
        top_p: 0.95,
        frequency_penalty: 0.5,
        penalty_window: Some(6),
        seed: 9,
        ..GenerationParams::default()
    });
    let answer = |sampler: &mut Sampler, fresh: bool| {
        let mut tokens = vec![1, 2, 3];
        for _ in 0..50 {
            if fresh {
                // As after a preemption: nothing is kept except the text.
                *sampler = Sampler::new(Arc::clone(&params), sampler.index);
            }
            let mut l = logits(12, u64::from(*tokens.last().unwrap()));
            let text = Text { tokens: &tokens, prompt: 3 };
            tokens.push(sampler.next(&mut l, text, None).unwrap().token);
        }
        tokens
    };
    let [first, again] = [false, true].map(|fresh| answer(&mut Sampler::new(Arc::clone(&params), 0), fresh));
    assert_eq!(first, again);
    assert_ne!(first, answer(&mut Sampler::new(Arc::clone(&params), 1), false));
}

#[test]
fn greedy_takes_the_first_largest_logit() {
    let text = Text { tokens: &[5], prompt: 1 };
    let greedy = |params: GenerationParams, l: &[f32], allowed: Option<&[u32]>| {
        Sampler::new(Arc::new(GenerationParams { temperature: 0.0, ..params }), 0).next(&mut l.to_vec(), text, allowed)
    };
    let l = [1.0, 3.0, -2.0, 3.0, 0.0, 3.0];
    assert_eq!(greedy(GenerationParams::default(), &l, None).unwrap().token, 1);
    assert_eq!(greedy(GenerationParams::default(), &l, Some(&[0b111100])).unwrap().token, 3);
    assert_eq!(
        greedy(GenerationParams { logit_bias: [(0, 2.5)].into(), ..GenerationParams::default() }, &l, None)
            .unwrap()
            .token,
        0
    );
    let penalty = GenerationParams { repetition_penalty: 0.5, ..GenerationParams::default() };
    assert_eq!(greedy(penalty, &l, None).unwrap().token, 5);
    // However small, a temperature is no division by zero.
    for temperature in [f32::MIN_POSITIVE, 1e-45, 1e-10] {
        let params = Arc::new(GenerationParams { temperature, seed: 4, ..GenerationParams::default() });
        let token = Sampler::new(params, 0).next(&mut l.to_vec(), text, None).unwrap().token;
        assert!([1, 3, 5].contains(&token));
    }
}

#[test]
fn non_finite_logits_and_empty_masks_are_errors() {
    let text = Text { tokens: &[0, 9999], prompt: 1 };
    for temperature in [0.0, 1.0] {
        let params =
            GenerationParams { temperature, frequency_penalty: 1.0, top_p: 0.9, ..GenerationParams::default() };
        let mut sampler = Sampler::new(Arc::new(params), 0);
        let nan = sampler.next(&mut [1.0, f32::NAN, 2.0], text, None).unwrap_err();
        assert!(matches!(nan, Failure::NotFinite { token: 1, .. }));
        assert!(nan.to_string().contains("logit of token 1 is NaN"));
        for bad in [f32::INFINITY, f32::NEG_INFINITY] {
            assert!(matches!(sampler.next(&mut [1.0, bad], text, None), Err(Failure::NotFinite { token: 1, .. })));
        }
        assert_eq!(sampler.next(&mut [], text, None), Err(Failure::Empty));
        assert_eq!(sampler.next(&mut [1.0; 3], text, Some(&[0])), Err(Failure::NothingAllowed));
        assert_eq!(sampler.next(&mut [1.0; 3], text, Some(&[])), Err(Failure::NothingAllowed));
        assert!(sampler.next(&mut [f32::MAX, f32::MIN], text, None).is_ok());
    }
    let tiny = GenerationParams { repetition_penalty: 1e-30, ..GenerationParams::default() };
    assert_eq!(Sampler::new(Arc::new(tiny), 0).next(&mut [1e30, 1.0], text, None).unwrap().token, 0);
}

#[test]
fn logprobs_ignore_bias_penalties_and_temperature() {
    let l = logits(3000, 8);
    let exact = {
        let best = l.iter().fold(f32::MIN, |a, b| a.max(*b));
        let sum: f64 = l.iter().map(|x| f64::from(x - best).exp()).sum();
        move |x: f32| f64::from(x - best) - sum.ln()
    };
    // Bias and penalties both push the choice to an unlikely token.
    let params = GenerationParams {
        temperature: 0.1,
        logit_bias: [(17, 50.0)].into(),
        repetition_penalty: 0.5,
        logprobs: Some(5),
        ..GenerationParams::default()
    };
    let text = Text { tokens: &[17], prompt: 1 };
    let choice = Sampler::new(Arc::new(params), 0).next(&mut l.clone(), text, None).unwrap();
    assert_eq!(choice.token, 17);
    let logprobs = choice.logprobs.unwrap();
    assert!((f64::from(logprobs.chosen) - exact(l[17])).abs() < 2e-6);
    let mut order: Vec<u32> = (0..3000).collect();
    order.sort_by(|a, b| l[*b as usize].total_cmp(&l[*a as usize]).then(a.cmp(b)));
    assert_eq!(logprobs.top.iter().map(|t| t.0).collect::<Vec<_>>(), order[..5]);
    assert!(logprobs.top.iter().all(|(id, p)| (f64::from(*p) - exact(l[*id as usize])).abs() < 2e-6));
    let none = Sampler::new(Arc::default(), 0).next(&mut l.clone(), text, None).unwrap();
    assert_eq!(none.logprobs, None);
}

/// `cargo test --release -- --ignored --nocapture sampler_speed`
#[test]
#[ignore = "a measurement"]
fn sampler_speed() {
    let l = logits(151_936, 1);
    let tokens: Vec<u32> = (0..4000).map(|i| i * 31 % 150_000).collect();
    let p = GenerationParams::default();
    let cases = [
        ("greedy", GenerationParams { temperature: 0.0, ..p.clone() }),
        ("plain", p.clone()),
        ("top_k 50", GenerationParams { top_k: Some(50), ..p.clone() }),
        ("top_k 1000", GenerationParams { top_k: Some(1000), ..p.clone() }),
        ("top_p 0.9", GenerationParams { top_p: 0.9, temperature: 0.5, ..p.clone() }),
        ("top_k 40, top_p 0.95", GenerationParams { top_k: Some(40), top_p: 0.95, temperature: 0.8, ..p.clone() }),
        ("min_p 0.05", GenerationParams { min_p: 0.05, ..p.clone() }),
        ("top_p 0.95, temperature 3", GenerationParams { top_p: 0.95, temperature: 3.0, ..p.clone() }),
        ("penalties, 4000 tokens", GenerationParams { top_k: Some(50), repetition_penalty: 1.1, ..p.clone() }),
        ("greedy, 20 logprobs", GenerationParams { temperature: 0.0, logprobs: Some(20), ..p }),
    ];
    for (name, params) in cases {
        let mut sampler = Sampler::new(Arc::new(params), 0);
        let mut times: Vec<f64> = (0..50)
            .map(|i| {
                let mut l = l.clone();
                let text = Text { tokens: &tokens[..3950 + i], prompt: 100 };
                let start = std::time::Instant::now();
                std::hint::black_box(sampler.next(&mut l, text, None).unwrap());
                start.elapsed().as_secs_f64() * 1e6
            })
            .collect();
        times.sort_by(f64::total_cmp);
        println!("{name:28} {:6.0} µs", times[25]);
    }
}

#[test]
fn sampled_logprobs_are_those_of_the_remaining_tokens() {
    let logits = [2.0f32.ln(), 0.0, 4.0f32.ln(), 1.0f32.ln(), f32::NEG_INFINITY];
    let of = |params: SamplingParams, token| {
        let Logprobs { chosen, top } = logprobs::sampled_logprobs(&logits, &params, token, 10);
        let rounded = |logprob: f32| (f64::from(logprob).exp() * 1000.0).round() / 1000.0;
        (rounded(chosen), top.into_iter().map(|(id, logprob)| (id, rounded(logprob))).collect::<Vec<_>>())
    };
    let plain = SamplingParams { temperature: 1.0, ..SamplingParams::GREEDY };
    assert_eq!(of(plain, 0), (0.25, vec![(2, 0.5), (0, 0.25), (1, 0.125), (3, 0.125)]));
    assert_eq!(of(SamplingParams { top_k: Some(2), ..plain }, 2), (0.667, vec![(2, 0.667), (0, 0.333)]));
    assert_eq!(of(SamplingParams { top_p: 0.6, ..plain }, 0), (0.333, vec![(2, 0.667), (0, 0.333)]));
    assert_eq!(of(SamplingParams { min_p: 0.9, ..plain }, 2), (1.0, vec![(2, 1.0)]));
    assert_eq!(of(SamplingParams { temperature: 0.5, top_k: Some(2), ..plain }, 0), (0.2, vec![(2, 0.8), (0, 0.2)]));
    assert_eq!(of(SamplingParams::GREEDY, 2), (1.0, vec![(2, 1.0)]));
}
