//! Beam search: the likeliest complete answers, as transformers' `generate` finds them. Pure.
//!
//! A step takes the max(2, 1 + e) · b likeliest continuations of all beams, where b is the number
//! of beams and e the number of end tokens. So at least b of them do not end. A continuation that
//! ends becomes an answer if it is among the first b. An answer's score is the sum of its log
//! probabilities divided by length^`length_penalty`; the b best answers are kept. The b likeliest
//! continuations that do not end are the next beams. At the maximum length every beam ends.
//!
//! Scores are added in f32, as in transformers.

use sconce_ops::sample::Ranked;
use std::cmp::Ordering;

/// Parameters of a beam search.
#[derive(Clone, Debug)]
pub(crate) struct BeamOptions {
    /// Number of beams.
    pub(crate) beams: usize,
    /// An answer's score is divided by its length to this power: values above 0 favour long
    /// answers.
    pub(crate) length_penalty: f32,
    /// When to stop looking for better answers.
    pub(crate) early_stopping: EarlyStopping,
    /// Number of answers to return, at most the number of beams.
    pub(crate) answers: usize,
    /// End tokens.
    pub(crate) ends: Vec<u32>,
    /// The most tokens of an answer.
    pub(crate) most: usize,
}

/// When a search with as many answers as beams stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlyStopping {
    /// At once.
    Yes,
    /// When the likeliest beam would not beat the worst answer if it ended now. A heuristic: it
    /// might still win if longer is better.
    No,
    /// When the likeliest beam could not beat the worst answer at any length.
    Never,
}

/// A complete or running answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Hypothesis {
    /// Its tokens, with the end token.
    pub(crate) tokens: Vec<u32>,
    /// Its log probability over length^`length_penalty`.
    pub(crate) score: f32,
}

/// How a beam continues: its index among the last beams, and its new token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Continued {
    /// Index among the last beams.
    pub(crate) beam: usize,
    /// Its new token.
    pub(crate) token: u32,
}

/// The state of a beam search for one prompt.
pub(crate) struct Beams {
    options: BeamOptions,
    running: Vec<Hypothesis>,  // score: log probability; best first
    finished: Vec<Hypothesis>, // best first, at most `beams`
}

impl Beams {
    /// A new search. It begins with one beam, so the first step takes one row.
    pub(crate) fn new(options: BeamOptions) -> Result<Beams, String> {
        let BeamOptions { beams, answers, length_penalty, most, .. } = options;
        if beams == 0 || most == 0 {
            return Err(format!("{beams} beams of {most} tokens: both must be at least 1"));
        }
        if answers == 0 || answers > beams {
            return Err(format!("{beams} beams cannot give {answers} answers; ask for 1 to {beams}"));
        }
        if !length_penalty.is_finite() {
            return Err(format!("length_penalty is {length_penalty}; it must be finite"));
        }
        let start = Hypothesis { tokens: Vec::new(), score: 0.0 };
        Ok(Beams { options, running: vec![start], finished: Vec::new() })
    }

    /// The tokens of each beam so far, in the order of the next step's rows.
    #[cfg(test)]
    pub(crate) fn running(&self) -> impl ExactSizeIterator<Item = &[u32]> {
        self.running.iter().map(|b| b.tokens.as_slice())
    }

    /// Takes the log probabilities of the next token, a row per beam. Returns the beams that
    /// continue, in the order of the next step's rows; none when the search is over.
    pub(crate) fn step(&mut self, rows: &[&[f32]]) -> Vec<Continued> {
        debug_assert_eq!(rows.len(), self.running.len());
        let BeamOptions { beams, early_stopping, ends, most, .. } = &self.options;
        let (beams, early_stopping) = (*beams, *early_stopping);
        let best = likeliest(&self.running, rows, beams * (1 + ends.len()).max(2));
        let length = self.running.first().map_or(0, |b| b.tokens.len()) + 1;
        let last = length >= *most;
        let mut running = Vec::with_capacity(beams);
        let mut continued = Vec::with_capacity(beams);
        let mut ended = Vec::new();
        for (i, (log_prob, Continued { beam, token })) in best.into_iter().enumerate() {
            let ends = last || ends.contains(&token);
            // An answer that ends after the first b cannot be among the best b.
            if (ends && i >= beams) || (!ends && running.len() == beams) {
                continue;
            }
            let mut tokens = self.running[beam].tokens.clone();
            tokens.push(token);
            if ends {
                ended.push(Hypothesis { tokens, score: self.score(log_prob, length) });
            } else {
                running.push(Hypothesis { tokens, score: log_prob });
                continued.push(Continued { beam, token });
            }
        }
        self.finished.extend(ended);
        self.finished.sort_by(|a, b| descending(a.score, b.score));
        self.finished.truncate(beams);
        self.running = running;
        if self.is_over(early_stopping, length) {
            self.running.clear();
            continued.clear();
        }
        continued
    }

    /// The best answers, best first, of a search that is over.
    pub(crate) fn answers(mut self) -> Vec<Hypothesis> {
        self.finished.truncate(self.options.answers);
        self.finished
    }

    fn is_over(&self, early_stopping: EarlyStopping, length: usize) -> bool {
        let Some(best) = self.running.first() else { return true };
        if self.finished.len() < self.options.beams {
            return false;
        }
        let worst = self.finished.last().map_or(f32::NEG_INFINITY, |h| h.score);
        let length = match early_stopping {
            EarlyStopping::Yes => return true,
            // With a penalty above 0 longer is better, so the best possible score is at the maximum
            // length.
            EarlyStopping::Never if self.options.length_penalty > 0.0 => self.options.most,
            EarlyStopping::No | EarlyStopping::Never => length,
        };
        self.score(best.score, length) <= worst
    }

    fn score(&self, log_prob: f32, length: usize) -> f32 {
        log_prob / (length as f64).powf(f64::from(self.options.length_penalty)) as f32
    }
}

/// The `most` likeliest continuations, best first; among equals the better beam's, then the lower
/// id.
fn likeliest(running: &[Hypothesis], rows: &[&[f32]], most: usize) -> Vec<(f32, Continued)> {
    let mut all = Vec::new();
    for (beam, (so_far, row)) in running.iter().zip(rows).enumerate() {
        let mut ranked = Ranked::new(row, most);
        let best = (0..most).map_while(|i| ranked.get(i));
        all.extend(best.map(|(log_prob, token)| (so_far.score + log_prob, Continued { beam, token })));
    }
    all.sort_by(|a, b| descending(a.0, b.0));
    all.truncate(most);
    all
}

fn descending(a: f32, b: f32) -> Ordering {
    b.total_cmp(&a)
}

#[cfg(test)]
mod tests {
    use super::super::logprobs::log_softmax;
    use super::*;
    use sconce_testkit::mix;

    /// The model of tools/goldens/beams.py, after the tokens of an answer.
    fn model(seed: u64, answer: &[u32], ends: &[u32]) -> Vec<f32> {
        let tokens = [&[0], answer].concat();
        let last = tokens[tokens.len() - 1];
        let before = if tokens.len() > 1 { tokens[tokens.len() - 2] } else { 0 };
        let h = mix(mix(mix(seed, tokens.len() as u64), u64::from(last)), u64::from(before) + 100);
        let mut row: Vec<f32> = (0..24).map(|i| (mix(h, i) >> 40) as f32 / (1 << 21) as f32 - 4.0).collect();
        ends.iter().for_each(|e| row[*e as usize] += 1.0);
        log_softmax(&mut row);
        row
    }

    fn search(options: BeamOptions, seed: u64) -> Vec<Hypothesis> {
        let ends = options.ends.clone();
        let mut beams = Beams::new(options).unwrap();
        let mut known = vec![Vec::new()];
        loop {
            assert!(beams.running().eq(known.iter().map(Vec::as_slice)));
            let rows: Vec<Vec<f32>> = beams.running().map(|answer| model(seed, answer, &ends)).collect();
            let next = beams.step(&rows.iter().map(Vec::as_slice).collect::<Vec<_>>());
            if next.is_empty() {
                return beams.answers();
            }
            known = next.iter().map(|c| [known[c.beam].as_slice(), &[c.token]].concat()).collect();
        }
    }

    #[test]
    fn beam_search_equals_transformers() {
        let mut lines = 0;
        for line in include_str!("beams_golden.txt").lines() {
            let [options, answers, scores] = line.split('|').collect::<Vec<_>>()[..] else { panic!("{line}") };
            let [seed, beams, penalty, early, ends, most, count] = options.split_whitespace().collect::<Vec<_>>()[..]
            else {
                panic!("{line}")
            };
            let early_stopping = match early {
                "true" => EarlyStopping::Yes,
                "false" => EarlyStopping::No,
                _ => EarlyStopping::Never,
            };
            let options = BeamOptions {
                beams: beams.parse().unwrap(),
                length_penalty: penalty.parse().unwrap(),
                early_stopping,
                answers: count.parse().unwrap(),
                ends: ends.split(',').map(|e| e.parse().unwrap()).collect(),
                most: most.parse().unwrap(),
            };
            let found = search(options, seed.parse().unwrap());
            let tokens: Vec<Vec<u32>> =
                answers.split(';').map(|a| a.split_whitespace().map(|t| t.parse().unwrap()).collect()).collect();
            assert_eq!(found.iter().map(|h| h.tokens.clone()).collect::<Vec<_>>(), tokens, "{line}");
            for (hypothesis, score) in found.iter().zip(scores.split_whitespace()) {
                let score: f32 = score.parse().unwrap();
                assert!(
                    (hypothesis.score - score).abs() <= 1e-5 * score.abs().max(1.0),
                    "{} of {line}",
                    hypothesis.score
                );
            }
            lines += 1;
        }
        assert_eq!(lines, 360);
    }

    #[test]
    fn wide_beam_search_equals_exhaustive_search() {
        for seed in 0..20 {
            let options = BeamOptions {
                beams: 24 * 24,
                length_penalty: 0.0,
                early_stopping: EarlyStopping::Never,
                answers: 3,
                ends: vec![1],
                most: 3,
            };
            let mut all = Vec::new();
            let mut open = vec![Hypothesis { tokens: vec![], score: 0.0 }];
            while let Some(beam) = open.pop() {
                for (token, log_prob) in model(seed, &beam.tokens, &[1]).into_iter().enumerate() {
                    let tokens = [beam.tokens.as_slice(), &[token as u32]].concat();
                    let over = token == 1 || tokens.len() == 3;
                    let next = Hypothesis { tokens, score: beam.score + log_prob };
                    if over { all.push(next) } else { open.push(next) }
                }
            }
            all.sort_by(|a, b| descending(a.score, b.score));
            all.truncate(3);
            assert_eq!(search(options, seed), all);
        }
    }

    #[test]
    fn invalid_beam_options_are_refused() {
        let good = BeamOptions {
            beams: 4,
            length_penalty: 1.0,
            early_stopping: EarlyStopping::No,
            answers: 4,
            ends: vec![],
            most: 5,
        };
        assert!(Beams::new(good.clone()).is_ok());
        assert!(Beams::new(BeamOptions { beams: 0, ..good.clone() }).is_err());
        assert!(Beams::new(BeamOptions { most: 0, ..good.clone() }).is_err());
        assert!(Beams::new(BeamOptions { answers: 5, ..good.clone() }).is_err());
        assert!(Beams::new(BeamOptions { length_penalty: f32::NAN, ..good }).is_err());
    }
}
