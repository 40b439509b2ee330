//! From a request to the engine's requests, and the settings that a response reports.

use crate::conversation::{Generation, SharedFields};
use crate::error::{Fault, FaultKind};
use crate::served_model::ServedModel;
use sconce_api::llama_cpp::{CompletionRequest, GenerationSettings, PromptPart, TokenBias, TokenOrText};
use sconce_engine::{Format, GenerationParams, Llm, Loaded, Request, Start, TaskModel};

/// Most stop strings.
const MAX_STOP_STRINGS: usize = 16;
/// Most probabilities per token.
const MAX_PROBABILITIES: u32 = 100;
/// Most tokens with a bias. Each answer reports them.
const MAX_BIASES: usize = 1_024;
/// Bias of a token that is excluded: no logit of a model makes up for it.
const EXCLUDED: f32 = -100.0;

/// The samplers, in their order.
const SAMPLERS: [&str; 5] = ["penalties", "temperature", "top_k", "top_p", "min_p"];

/// What is known about the prompts of a request before the first token.
#[derive(Clone, Debug)]
pub(super) struct Prepared {
    /// The settings.
    pub(super) settings: GenerationSettings,
    /// The prompts.
    pub(super) prompts: Vec<Prompt>,
    /// Tokens of the context.
    pub(super) context: usize,
    /// Answers to each prompt.
    pub(super) answers_per_prompt: usize,
}

/// A prompt.
#[derive(Clone, Debug)]
pub(super) struct Prompt {
    /// Its tokens.
    pub(super) tokens: usize,
    /// Its text.
    pub(super) text: String,
    /// Whether the context, not the request, limits its answers.
    pub(super) is_limited_by_context: bool,
}

/// The parts of a request that can be checked without a model.
#[derive(Clone, Debug)]
pub(super) struct Checked {
    stop: Vec<String>,
    format: Option<Format>,
    n_probs: u32,
    /// `None`: as many tokens as fit into the context.
    n_predict: Option<usize>,
}

impl Checked {
    pub(super) fn new(request: &CompletionRequest) -> Result<Checked, Fault> {
        let stop = request.stop.clone().map(|stop| stop.into_vec()).unwrap_or_default();
        let stop: Vec<String> = stop.into_iter().filter(|text| !text.is_empty()).collect();
        if stop.len() > MAX_STOP_STRINGS {
            let what = format!("`stop` has {} texts; the limit is {MAX_STOP_STRINGS}", stop.len());
            return Err(Fault::invalid(what).at("stop"));
        }
        let n_probs = request.n_probs.unwrap_or(0);
        if n_probs > MAX_PROBABILITIES {
            let what = format!("`n_probs` is {n_probs}; the limit is {MAX_PROBABILITIES}");
            return Err(Fault::invalid(what).at("n_probs"));
        }
        let n_predict = match request.n_predict {
            None | Some(-1) => None,
            Some(n) => Some(usize::try_from(n).map_err(|_| {
                let what = format!("`n_predict` is {n}; it must be 0 or more, or -1 for as many as fit");
                Fault::invalid(what).at("n_predict")
            })?),
        };
        let grammar = request.grammar.clone().filter(|grammar| !grammar.trim().is_empty());
        let format = match (grammar, &request.json_schema) {
            (Some(_), Some(_)) => {
                let what = "an answer has one form: set `grammar` or `json_schema`, not both";
                return Err(Fault::invalid(what).at("grammar"));
            }
            (Some(grammar), None) => Some(Format::Gbnf(grammar)),
            (None, Some(schema)) => Some(Format::JsonSchema(schema.clone())),
            (None, None) => None,
        };
        Ok(Checked { stop, format, n_probs, n_predict })
    }

    /// Whether the answer has a required form.
    pub(super) fn has_format(&self) -> bool {
        self.format.is_some()
    }
}

/// The language model that a request is for.
pub(super) fn language_model(served: &ServedModel) -> Result<&Llm, Fault> {
    match &served.model {
        TaskModel::Generate(llm) => Ok(llm),
        _ => {
            let what = format!("the model `{}` is not a language model; send the prompt to /v1/completions", served.id);
            Err(Fault::new(FaultKind::UnsupportedTask, what).at("model"))
        }
    }
}

/// The engine's requests. `prompts` are tokens.
pub(super) fn generation(
    llm: &Llm,
    body: &CompletionRequest,
    checked: Checked,
    prompts: Vec<Vec<u32>>,
) -> Result<(Generation, Prepared), Fault> {
    let params = params(llm, body, &checked)?;
    let settings = settings(llm, body, &checked, &params);
    let (context, n_predict) = (llm.context(), checked.n_predict);
    let (mut requests, mut known) = (Vec::new(), Vec::new());
    for tokens in prompts {
        let room = context.saturating_sub(tokens.len());
        known.push(Prompt {
            tokens: tokens.len(),
            text: llm.decode(&tokens).unwrap_or_default(),
            is_limited_by_context: n_predict.is_none_or(|most| most > room),
        });
        requests.push(Request {
            start: Start::Tokens(tokens),
            params: Some(params.clone()),
            // Without room the engine says what the prompt is too long for.
            max_tokens: Some(n_predict.unwrap_or(room).min(room.max(1))),
            stop: checked.stop.clone(),
            // Only an answer that begins with its prompt may have no tokens.
            echo: n_predict == Some(0),
            ignore_end: false,
            format: checked.format.clone(),
            thoughts: None,
            progress: body.return_progress.unwrap_or(false),
        });
    }
    let answers_per_prompt = params.n.max(1) as usize;
    Ok((
        Generation::Decode { requests, marks: Vec::new() },
        Prepared { settings, prompts: known, context, answers_per_prompt },
    ))
}

/// The tokens of a prompt. A text at its beginning gets the tokens that begin every text.
pub(super) fn encode(llm: &Llm, parts: &[PromptPart]) -> Result<Vec<u32>, Fault> {
    let mut tokens = Vec::new();
    for (i, part) in parts.iter().enumerate() {
        match part {
            PromptPart::Id(id) => tokens.push(*id),
            PromptPart::Text(text) => tokens.extend(llm.tokenize(text, i == 0)?.into_iter().map(|token| token.id)),
        }
    }
    if let Some(id) = tokens.iter().find(|id| **id as usize >= llm.plan().vocabulary) {
        let what = format!("token {id} is outside of the model's vocabulary of {}", llm.plan().vocabulary);
        return Err(Fault::invalid(what).at("prompt"));
    }
    Ok(tokens)
}

fn params(llm: &Llm, body: &CompletionRequest, checked: &Checked) -> Result<GenerationParams, Fault> {
    let vocabulary = llm.plan().vocabulary;
    let mut params = SharedFields::from(body).params(llm.params(), vocabulary)?;
    match body.repeat_last_n {
        None => {}
        Some(-1) => params.penalty_window = None,
        Some(0) => {
            (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) = (1.0, 0.0, 0.0);
        }
        Some(n) => {
            let window = usize::try_from(n).map_err(|_| {
                let what = format!("`repeat_last_n` is {n}; it must be 0 or more, or -1 for all tokens");
                Fault::invalid(what).at("repeat_last_n")
            })?;
            params.penalty_window = Some(window);
        }
    }
    for (token, bias) in body.logit_bias.clone().into_iter().flat_map(|all| all.into_pairs()) {
        let bias = bias.unwrap_or(EXCLUDED);
        match token {
            TokenOrText::Id(id) => params.logit_bias.extend([(id, bias)]),
            TokenOrText::Text(text) => {
                params.logit_bias.extend(llm.tokenize(&text, false)?.into_iter().map(|token| (token.id, bias)));
            }
        }
    }
    if params.logit_bias.len() > MAX_BIASES {
        let what = format!("`logit_bias` is for {} tokens; the limit is {MAX_BIASES}", params.logit_bias.len());
        return Err(Fault::invalid(what).at("logit_bias"));
    }
    if body.ignore_eos.unwrap_or(false) {
        params.logit_bias.extend(llm.end_tokens().map(|id| (id, EXCLUDED)));
    }
    if checked.n_probs > 0 {
        params.logprobs = Some(checked.n_probs);
        params.sampled_logprobs = body.post_sampling_probs.unwrap_or(false);
    }
    params.check(vocabulary).map_err(|invalid| Fault::invalid(invalid.to_string()).at(invalid.parameter))?;
    Ok(params)
}

fn settings(llm: &Llm, body: &CompletionRequest, checked: &Checked, params: &GenerationParams) -> GenerationSettings {
    let limit = checked.n_predict.map_or(-1, |n| i64::try_from(n).unwrap_or(i64::MAX));
    let ignore_eos = body.ignore_eos.unwrap_or(false);
    let excluded = |id: u32| ignore_eos && llm.end_tokens().any(|end| end == id);
    let bias = |(token, bias): (&u32, &f32)| TokenBias { token: *token, bias: (!excluded(*token)).then_some(*bias) };
    GenerationSettings {
        stop: checked.stop.clone(),
        max_tokens: limit,
        n_predict: limit,
        ignore_eos,
        stream: body.stream.unwrap_or(false),
        logit_bias: params.logit_bias.iter().map(bias).collect(),
        n_probs: checked.n_probs,
        grammar: match &checked.format {
            Some(Format::Gbnf(grammar)) => grammar.clone(),
            _ => String::new(),
        },
        timings_per_token: body.timings_per_token.unwrap_or(false),
        post_sampling_probs: body.post_sampling_probs.unwrap_or(false),
        ..default_settings(params)
    }
}

/// The settings of these parameters.
pub(super) fn default_settings(params: &GenerationParams) -> GenerationSettings {
    GenerationSettings {
        seed: params.seed,
        temperature: params.temperature,
        top_k: params.top_k.unwrap_or(0),
        top_p: params.top_p,
        min_p: params.min_p,
        repeat_last_n: params.penalty_window.map_or(-1, |n| i64::try_from(n).unwrap_or(i64::MAX)),
        repeat_penalty: params.repetition_penalty,
        presence_penalty: params.presence_penalty,
        frequency_penalty: params.frequency_penalty,
        max_tokens: -1,
        n_predict: -1,
        samplers: SAMPLERS.map(Into::into).into(),
        dynatemp_exponent: 1.0,
        typical_p: 1.0,
        top_n_sigma: -1.0,
        adaptive_target: -1.0,
        ..GenerationSettings::default()
    }
}
