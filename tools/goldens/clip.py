"""CLIP and SigLIP: a text tower and a vision tower with a common embedding space."""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    CLIPModel,
    CLIPTextModelWithProjection,
    CLIPVisionModelWithProjection,
    PreTrainedModel,
    SiglipModel,
    SiglipTextModel,
    SiglipVisionModel,
)

from files import empty_dir
from synthetic import Packed, Variant, all_in_float64, load

TEXT = {
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "dropout": 0.0,
    "eos_token_id": 2,
    "hidden_act": "quick_gelu",
    "hidden_size": 36,
    "initializer_factor": 1.0,
    "initializer_range": 0.02,
    "intermediate_size": 50,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 20,
    "model_type": "clip_text_model",
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "pad_token_id": 1,
    "projection_dim": 28,
    "vocab_size": 99,
}
VISION = {
    "attention_dropout": 0.0,
    "dropout": 0.0,
    "hidden_act": "quick_gelu",
    "hidden_size": 44,
    "image_size": 32,
    "initializer_factor": 1.0,
    "initializer_range": 0.02,
    "intermediate_size": 58,
    "layer_norm_eps": 1e-05,
    "model_type": "clip_vision_model",
    "num_attention_heads": 4,
    "num_channels": 3,
    "num_hidden_layers": 3,
    "patch_size": 8,
    "projection_dim": 28,
}


def clip(
    text: dict[str, Any], vision: dict[str, Any], projection: int
) -> dict[str, Any]:
    return {
        "architectures": ["CLIPModel"],
        "initializer_factor": 1.0,
        "logit_scale_init_value": 2.6592,
        "model_type": "clip",
        "projection_dim": projection,
        "text_config": text,
        "torch_dtype": "float32",
        "transformers_version": None,
        "vision_config": vision,
    }


def siglip(text: dict[str, Any], vision: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["SiglipModel"],
        "initializer_factor": 1.0,
        "model_type": "siglip",
        "text_config": text | {"model_type": "siglip_text_model"},
        "torch_dtype": "float32",
        "transformers_version": "4.37.0.dev0",
        "vision_config": vision | {"model_type": "siglip_vision_model"},
    }


SIGLIP_TEXT = {
    "hidden_size": 36,
    "intermediate_size": 50,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "vocab_size": 99,
}
SIGLIP_VISION = {
    "hidden_size": 36,
    "image_size": 40,
    "intermediate_size": 58,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "patch_size": 8,
}
# An image size that is not a multiple of the patch size: the remaining pixels at the right and
# bottom are ignored.
UNEVEN = {"hidden_act": "gelu", "image_size": 29, "patch_size": 7}

RULES = [
    ("logit_scale", -0.3, 2.5),
    ("logit_bias", -0.5, -3.0),
    ("class_embedding|probe", -1.2, 0.0),
    ("patch_embedding.weight", 1.0, 0.0),
    ("in_proj_weight", 1.4, 0.0),
]
# The end token has the highest id and also pads: its first occurrence counts.
ENDED = [[0, 98], [0, 41, 17, 60, 33, 98], [0, *range(10, 25), 98], [0, 7, 98, 98, 98]]
# The end token is 90; higher ids were added later and occur before it.
ADDED = [[0, 90], [0, 95, 17, 60, 33, 90], [0, *range(80, 90), 96, 90, 90, 91]]
# SigLIP pads with 1 to all 64 positions and attends to every one; the last position is pooled. One
# text is not padded.
PADDED = [
    [34, 81, 11, 2, *[1] * 60],
    [*range(20, 80), 1, 1, 1, 1],
    [60, 7, 33, 5],
]

VARIANTS = [
    Variant("clip-tiny", 401, CLIPModel, clip(TEXT, VISION, 28), sequences=ENDED),
    Variant(
        "clip-gelu-eos",
        402,
        CLIPModel,
        clip(
            TEXT | {"hidden_act": "gelu", "eos_token_id": 90},
            VISION | UNEVEN,
            28,
        ),
        sequences=ADDED,
    ),
    Variant(
        "clip-text",
        403,
        CLIPTextModelWithProjection,
        TEXT | {"architectures": ["CLIPTextModelWithProjection"]},
        sequences=ENDED,
    ),
    Variant(
        "clip-vision",
        404,
        CLIPVisionModelWithProjection,
        VISION | {"architectures": ["CLIPVisionModelWithProjection"]},
    ),
    # Missing fields are those of clip-vit-base-patch32: 8 heads in the text tower of 512, 12 in the
    # vision tower of 768, quick_gelu.
    Variant(
        "clip-base",
        405,
        CLIPModel,
        clip(
            {
                "model_type": "clip_text_model",
                "num_hidden_layers": 2,
                "vocab_size": 500,
                "eos_token_id": 2,
            },
            {
                "model_type": "clip_vision_model",
                "num_hidden_layers": 2,
                "image_size": 64,
                "patch_size": 32,
            },
            512,
        ),
        sequences=[[498, 499], [498, 17, 60, 33, 8, 120, 444, 9, 499]],
    ),
    Variant(
        "siglip-tiny",
        411,
        SiglipModel,
        siglip(SIGLIP_TEXT, SIGLIP_VISION),
        sequences=PADDED,
    ),
    # Text embeddings are projected to the size of the image embeddings.
    Variant(
        "siglip-projection",
        412,
        SiglipModel,
        siglip(
            SIGLIP_TEXT | {"projection_size": 44, "max_position_embeddings": 16},
            SIGLIP_VISION
            | {
                "hidden_size": 44,
                "num_attention_heads": 4,
                "image_size": 29,
                "patch_size": 7,
            },
        ),
        sequences=[[34, 81, 11, 2, *[1] * 12], [5]],
    ),
    # Files of transformers 4 keep the prefix of a single tower; those of transformers 5 omit it.
    Variant(
        "siglip-text",
        413,
        SiglipTextModel,
        SIGLIP_TEXT
        | {"architectures": ["SiglipTextModel"], "model_type": "siglip_text_model"},
        sequences=[[34, 81, 11, 2, *[1] * 60]],
        hub_name=lambda name: f"text_model.{name}",
    ),
    Variant(
        "siglip-vision",
        414,
        SiglipVisionModel,
        SIGLIP_VISION
        | {"architectures": ["SiglipVisionModel"], "model_type": "siglip_vision_model"},
        hub_name=lambda name: f"vision_model.{name}",
    ),
    # Missing fields are those of siglip-base-patch16-224, whose config has no fields at all.
    Variant(
        "siglip-base",
        415,
        SiglipModel,
        siglip(
            {"num_hidden_layers": 2, "vocab_size": 500},
            {"num_hidden_layers": 2, "image_size": 48},
        ),
        sequences=[[7], [34, 81, 11, 2, 1, 1, 1, 1, 1]],
    ),
]


def tower(packed: Packed, prefix: str, result: Any, layers: int) -> None:
    """Replaces the last block's output by the last hidden state: CLIP's vision tower has no norm
    there, the other towers do."""
    hidden, last = result.hidden_states, result.last_hidden_state
    assert len(hidden) == layers + 1
    for layer, rows in enumerate([*hidden[:-1], last]):
        packed.add(f"{prefix}hidden.{layer}", rows.flatten(0, 1))


@torch.inference_mode()
def write(out: Path, variant: Variant) -> None:
    variant.rules = RULES
    directory = empty_dir(out / variant.name)
    model = load(variant, directory)
    packed = Packed()
    config = model.config
    texts = getattr(config, "text_config", config if variant.sequences else None)
    images = getattr(config, "vision_config", None if variant.sequences else config)
    with all_in_float64():
        if texts is not None:
            write_texts(packed, model, variant, texts)
        if images is not None:
            write_images(packed, model, variant, images)
        if texts is not None and images is not None:
            write_both(packed, model, variant)
    about = {
        "architecture": variant.config["architectures"][0],
        "model": variant.model.__name__,
    }
    packed.write(directory, about)


def write_texts(
    packed: Packed, model: PreTrainedModel, variant: Variant, config: Any
) -> None:
    encoder = getattr(model, "text_model", model)
    for ids in variant.sequences:
        result = encoder(torch.tensor([ids]), output_hidden_states=True)
        packed.lengths.append(len(ids))
        packed.add("ids", torch.tensor(ids))
        packed.add("type_ids", torch.zeros(len(ids), dtype=torch.long))
        tower(packed, "", result, config.num_hidden_layers)
        embeds = result.pooler_output
        if hasattr(model, "text_projection"):
            packed.add("pooler", embeds)
            embeds = model.text_projection(embeds)
        packed.add("text_embeds", embeds)


def write_images(
    packed: Packed, model: PreTrainedModel, variant: Variant, config: Any
) -> None:
    encoder = getattr(model, "vision_model", model)
    size = config.image_size
    chance = torch.Generator().manual_seed(variant.seed)
    # In float32, as stored: rounding them later would make other images.
    count = 2 if config.hidden_size < 500 else 1
    pixels = torch.rand((count, 3, size, size), generator=chance) * 4 - 2
    packed.add("pixels", pixels)
    for image in pixels.double():
        result = encoder(image[None], output_hidden_states=True)
        tower(packed, "vision.", result, config.num_hidden_layers)
        embeds = result.pooler_output
        if hasattr(model, "visual_projection"):
            packed.add("vision.pooler", embeds)
            embeds = model.visual_projection(embeds)
        packed.add("image_embeds", embeds)


def write_both(packed: Packed, model: PreTrainedModel, variant: Variant) -> None:
    """Runs both towers together and checks that each gives what was stored for it."""
    pixels = packed.rows["pixels"][0].double()
    results = [model(torch.tensor([ids]), pixels) for ids in variant.sequences]
    for name, theirs in [
        ("text_embeds", torch.cat([result.text_embeds for result in results])),
        ("image_embeds", results[0].image_embeds),
    ]:
        ours = torch.cat(packed.rows[name])
        ours = ours / ours.norm(dim=-1, keepdim=True)
        assert torch.allclose(ours, theirs, atol=1e-12), name
        packed.add(f"{name}.normalized", ours)
    packed.add(
        "logits_per_image", torch.cat([r.logits_per_image for r in results], dim=1)
    )
    packed.add("logit_scale", model.logit_scale.reshape(1))
    if hasattr(model, "logit_bias"):
        packed.add("logit_bias", model.logit_bias.reshape(1))


def make(out: Path, _work: Path) -> None:
    for variant in VARIANTS:
        write(out, variant)
