"""Goldens of generative models: logits at every position, and 32 greedy steps with the reference's
KV cache.

Weights are a formula (formula.py). Outputs are those of transformers entirely in float64, including
norms and RoPE angles. A float32 run must choose the same tokens; its distance is stored.
"""

import copy
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.numpy import save_file
from transformers import PreTrainedModel

from files import empty_dir, write_json
from synthetic import Packed, Rule, saved_shapes, spread, weights, write_tensors

# A single token; longer than the windows of 8; longer than every short context in the configs here.
LENGTHS = [1, 10, 40]
STEPS = 32
# The prompt whose hidden states are stored and which is continued.
CONTINUED = 1
# A smaller margin, for a token or an expert, could be decided by rounding.
GAP, EXPERT_GAP = 0.01, 0.0005


@dataclass
class Decoder:
    """One golden directory. `config` is the content of its config.json, as in the hub's files."""

    name: str
    seed: int
    model: type[PreTrainedModel]
    config: dict[str, Any]
    # Changes of the config that must change the output of the same weights.
    matters: list[dict[str, Any]] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)
    # From the tensor names of transformers to those of the hub's files.
    hub_name: Callable[[str], str] = lambda name: name
    # Tensors that the hub's files have and the model ignores.
    extra: dict[str, list[int]] = field(default_factory=dict)
    # Whether to decode: with RoPE frequencies that depend on the length, cached keys would have
    # those of another length.
    decode: bool = True
    attention: str = "eager"
    options: dict[str, Any] = field(default_factory=dict)


@contextmanager
def doubled(distances: bool = False) -> Iterator[None]:
    """Makes transformers run in float64 what it forces into float32 whatever the model's dtype.

    With `distances`, integers still become float32: T5 rounds the logarithm of a distance there,
    which selects its bucket.
    """
    kept = torch.float32, torch.float, torch.Tensor.float
    default = torch.get_default_dtype()

    def to_float(tensor: torch.Tensor) -> torch.Tensor:
        stays = distances and not tensor.is_floating_point()
        return kept[2](tensor) if stays else tensor.double()

    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = to_float
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = kept
        torch.set_default_dtype(default)


@contextmanager
def exactly(model: PreTrainedModel) -> Iterator[None]:
    """`doubled` for a model in float64, a no-op for one in float32."""
    if model.dtype == torch.float64:
        with doubled(distances=model.config.is_encoder_decoder):
            yield
    else:
        yield


def load(variant: Any, directory: Path) -> PreTrainedModel:
    """Writes config.json and tensors.json into `directory` and returns the reference with those
    weights, in float32."""
    write_json(directory / "config.json", variant.config)
    config = variant.model.config_class.from_pretrained(directory)
    shapes = saved_shapes(variant, config)
    tensors = {
        variant.hub_name(name): shape for name, shape in shapes.items()
    } | variant.extra
    specs = {
        name: spread(name, shape, variant.rules) for name, shape in tensors.items()
    }
    write_tensors(directory / "tensors.json", variant.seed, specs)
    with tempfile.TemporaryDirectory() as temporary:
        write_json(Path(temporary) / "config.json", variant.config)
        save_file(
            weights(variant.seed, specs),
            Path(temporary) / "model.safetensors",
            metadata={"format": "pt"},
        )
        model, info = variant.model.from_pretrained(
            temporary,
            attn_implementation=variant.attention,
            experts_implementation="eager",
            dtype=torch.float32,
            output_loading_info=True,
            **variant.options,
        )
    # A tensor that the reference initializes or ignores would make this the golden of another
    # model.
    assert not info["missing_keys"], info
    assert set(info["unexpected_keys"]) <= set(variant.extra), info
    assert not info["mismatched_keys"], info
    return model.eval()


def rebuilt(model: PreTrainedModel, config: Any, dtype: torch.dtype) -> PreTrainedModel:
    """The same weights under another config or in another dtype."""
    given = copy.deepcopy(config)
    kind = model.config._attn_implementation
    other = type(model)._from_config(
        given, attn_implementation=kind, experts_implementation="eager", dtype=dtype
    )
    # Assigned, not copied, so that a head that the config would tie keeps the file's weights.
    state = {name: value.to(dtype) for name, value in model.state_dict().items()}
    missing, _ = other.load_state_dict(state, strict=False, assign=True)
    assert not missing, missing
    return other.eval()


def in_float64(model: PreTrainedModel) -> PreTrainedModel:
    with doubled():
        return rebuilt(model, model.config, torch.float64)


def draw(
    seed: int, vocabulary: int, lengths: list[int], first: int = 3
) -> list[torch.Tensor]:
    """Random ids as batches of one; ids below `first` are special."""
    chance = torch.Generator().manual_seed(seed)
    return [
        torch.randint(first, vocabulary, (1, length), generator=chance)
        for length in lengths
    ]


def prefill(model: PreTrainedModel, ids: torch.Tensor, **given: Any) -> Any:
    with exactly(model):
        return model(input_ids=ids, use_cache=False, **given)


def greedy(
    model: PreTrainedModel, ids: torch.Tensor, **given: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The ids that `generate` appends with its KV cache, without an end token, and the logits that
    selected each."""
    model.generation_config.eos_token_id = None
    model.generation_config.cache_implementation = None
    with exactly(model):
        result = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=STEPS,
            do_sample=False,
            num_beams=1,
            use_cache=True,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
            **given,
        )
    return result.sequences[0, -STEPS:], torch.cat(result.logits)


def gap(logits: torch.Tensor) -> float:
    """The smallest margin between the best and the second best."""
    best = logits.topk(2).values
    return (best[:, 0] - best[:, 1]).min().item()


@contextmanager
def watched_routers(model: PreTrainedModel, k: int | None) -> Iterator[list[float]]:
    """The router's margin between the last selected expert and the first that was not, for every
    token and layer."""
    gaps, hooks = [], []

    def hook(_module: Any, _given: Any, result: tuple[torch.Tensor, ...]) -> None:
        probabilities = result[0].softmax(-1).sort(descending=True).values
        gaps.append((probabilities[:, k - 1] - probabilities[:, k]).min().item())

    for name, module in model.named_modules():
        if k and name.endswith("mlp.gate"):
            hooks.append(module.register_forward_hook(hook))
    assert not k or hooks
    try:
        yield gaps
    finally:
        for one in hooks:
            one.remove()


def near(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a.double() - b.double()).abs().max().item()


def assert_matters(variant: Decoder, model: PreTrainedModel, ids: torch.Tensor) -> None:
    mine = prefill(model, ids).logits
    for change in variant.matters:
        config = variant.model.config_class.from_dict(
            copy.deepcopy(variant.config | change)
        )
        other = prefill(rebuilt(model, config, torch.float32), ids).logits
        assert near(mine, other) > 0.05, (variant.name, change, near(mine, other))


@torch.inference_mode()
def write(out: Path, variant: Decoder) -> None:
    directory = empty_dir(out / variant.name)
    single = load(variant, directory)
    model = in_float64(single)
    prompts = draw(variant.seed, model.config.vocab_size, LENGTHS)
    assert_matters(variant, single, prompts[-1])

    packed, distance = Packed(), {"logits": 0.0}
    experts = getattr(model.config, "num_experts_per_tok", None)
    with watched_routers(model, experts) as gaps:
        for number, ids in enumerate(prompts):
            result = prefill(model, ids, output_hidden_states=True)
            packed.lengths.append(ids.shape[1])
            packed.add("ids", ids[0])
            packed.add("logits", result.logits[0])
            off = near(result.logits, prefill(single, ids).logits)
            distance["logits"] = max(distance["logits"], off)
            if number == CONTINUED:
                for layer, rows in enumerate(result.hidden_states):
                    packed.add(f"hidden.{layer}", rows[0])
                assert len(result.hidden_states) == model.config.num_hidden_layers + 1
                assert_last_is_normed(model, result)
        if variant.decode:
            distance["decode.logits"] = decode(
                packed, model, single, prompts[CONTINUED]
            )
    assert not gaps or min(gaps) > EXPERT_GAP, (variant.name, min(gaps))
    assert torch.cat(packed.rows["logits"]).std() > 1, variant.name
    assert max(distance.values()) < 2e-4, distance
    about = {
        "architecture": variant.config["architectures"][0],
        "model": variant.model.__name__,
        "continued": CONTINUED,
        "float32_distance": {
            name: float(f"{value:.1e}") for name, value in distance.items()
        },
    }
    packed.write(directory, about)


def assert_last_is_normed(model: PreTrainedModel, result: Any) -> None:
    """The last hidden state is the input of the LM head."""
    with exactly(model):
        logits = model.get_output_embeddings()(result.hidden_states[-1])
        cap = getattr(model.config, "final_logit_softcapping", None)
        logits = cap * torch.tanh(logits / cap) if cap else logits
    assert near(logits, result.logits) < 1e-12


def decode(
    packed: Packed,
    model: PreTrainedModel,
    single: PreTrainedModel,
    prompt: torch.Tensor,
) -> float:
    chosen, logits = greedy(model, prompt)
    whole = torch.cat([prompt[0], chosen])[None]
    for step in range(STEPS):
        uncached = prefill(model, whole[:, : prompt.shape[1] + step]).logits[0, -1]
        assert near(uncached, logits[step]) < 1e-9, (step, near(uncached, logits[step]))
    assert gap(logits) > GAP, gap(logits)
    assert len(set(chosen.tolist())) >= 10, chosen
    same, other = greedy(single, prompt)
    assert torch.equal(same, chosen)
    packed.add("decode.ids", chosen)
    packed.add("decode.logits", logits)
    return near(logits, other)
