"""Tiny CLIP and SigLIP models, from image files and texts to probabilities, with the models' own
preprocessing."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.numpy import save_file
from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import (
    CLIPConfig,
    CLIPImageProcessorPil,
    CLIPModel,
    CLIPTokenizer,
    PreTrainedTokenizerFast,
    SiglipConfig,
    SiglipImageProcessorPil,
    SiglipModel,
)
from transformers.image_utils import load_image

import formula
import tiny
from files import empty_dir, write_json, write_json_sections

MAX_TOKENS = 16
TOWER = {
    "hidden_size": tiny.HIDDEN,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
VISION = TOWER | {"image_size": 32, "patch_size": 8}
TEXTS = [
    "a photo of a cat",
    "A Photo of a DOG!",
    "",
    "the man's caf\u00e9,  with   spaces \u65e5\u672c \U0001f600",
    "a text of many more tokens than the model may read, and what comes after the limit should not be heard",
]


def make(out: Path, _work: Path) -> None:
    images = empty_dir(out / "task-images")
    draw(images)
    clip(out / "task-clip", 181, legacy_end=True)
    # The end token is neither the highest id nor 2: the reader must use eos_token_id.
    clip(out / "task-clip-end", 182, legacy_end=False)
    siglip(out / "task-siglip", 183)


def draw(directory: Path) -> None:
    def noise(name: str, *shape: int) -> np.ndarray:
        """An image smooth enough for JPEG and uneven enough that a wrong filter shows."""
        height, width, channels = shape
        coarse = formula.values(180, name, [5, 5, channels], 127.0, 128.0)
        rows, columns = np.linspace(0, 3.999, height), np.linspace(0, 3.999, width)
        top, left = rows.astype(int), columns.astype(int)
        y, x = (rows - top)[:, None, None], (columns - left)[None, :, None]
        above = coarse[top][:, left] * (1 - x) + coarse[top][:, left + 1] * x
        below = coarse[top + 1][:, left] * (1 - x) + coarse[top + 1][:, left + 1] * x
        fine = formula.values(180, name + ".fine", list(shape), 20.0, 0.0)
        return np.clip(above * (1 - y) + below * y + fine, 0, 255).astype(np.uint8)

    def png(name: str, array: np.ndarray, mode: str) -> Image.Image:
        image = Image.fromarray(array.squeeze())
        assert image.mode == mode
        image.save(directory / f"{name}.png", optimize=True)
        return image

    png("exact", noise("exact", 32, 32, 3), "RGB")
    png("wide", noise("wide", 45, 96, 3), "RGB")
    png("tall", noise("tall", 51, 20, 3), "RGB")  # Smaller than the model's image size: enlarged.
    png("odd", noise("odd", 65, 37, 3), "RGB")
    png("strip", noise("strip", 4, 60, 3), "RGB")
    png("gray", noise("gray", 40, 50, 1), "L")
    # Transparency is dropped and the colours under it show; see `read` and `over_white`.
    png("alpha", noise("alpha", 40, 50, 4), "RGBA")
    colours = Image.fromarray(noise("palette", 40, 50, 3)).quantize(32)
    colours.save(directory / "palette.png", optimize=True, transparency=3)
    Image.fromarray(noise("jpeg", 50, 70, 3)).save(
        directory / "jpeg.jpg", quality=90
    )
    turned = Image.fromarray(noise("turned", 40, 64, 3))
    exif = Image.Exif()
    exif[0x0112] = 6  # Rotate by 90° clockwise for display.
    turned.save(directory / "turned.jpg", quality=90, exif=exif)
    grey = Image.fromarray(noise("cmyk", 40, 48, 3)).convert("CMYK")
    grey.save(directory / "cmyk.jpg", quality=90)

    decoded = {
        path.name: np.array(read(path)) for path in sorted(directory.iterdir())
    }
    save_file(decoded, directory / "golden.safetensors")
    shapes = {name: list(array.shape) for name, array in decoded.items()}
    write_json_sections(directory / "golden.json", {"decoded": shapes})


def read(path: Path) -> Image.Image:
    """As transformers reads a file: rotated by EXIF, then converted to RGB, which drops
    transparency."""
    image = load_image(str(path))
    # Conversion records the transparent colour, and the processor would turn it white wherever it
    # occurs.
    image.info.clear()
    return image


def over_white(path: Path, processor) -> torch.Tensor:
    """The pixels that transformers 5 gives for a transparent image that was opened but not
    converted."""
    return processor(Image.open(path), return_tensors="pt")["pixel_values"][0]


def clip(directory: Path, seed: int, legacy_end: bool) -> None:
    empty_dir(directory)
    tokenizer = clip_tokenizer(special_first=not legacy_end)
    # The published models have 2 here and mean "the highest id"; newer ones have the end token's
    # id.
    end = 2 if legacy_end else tokenizer.eos_token_id
    config = CLIPConfig(
        text_config=TOWER
        | {
            "vocab_size": len(tokenizer),
            "max_position_embeddings": MAX_TOKENS,
            "eos_token_id": end,
            "bos_token_id": 0 if legacy_end else tokenizer.bos_token_id,
            "pad_token_id": 1,
        },
        vision_config=VISION,
        projection_dim=24,
    )
    CLIPModel(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    formula.replace_weights(directory, seed)
    processor = {
        "crop_size": 32,
        "do_center_crop": True,
        "do_normalize": True,
        "do_resize": True,
        "feature_extractor_type": "CLIPFeatureExtractor",
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "resample": 3,
        "size": 32,
    }
    if not legacy_end:
        processor["size"] = {"shortest_edge": 36}  # Larger than the crop on both sides.
        processor["crop_size"] = {"height": 32, "width": 32}
        processor["do_convert_rgb"] = True
        processor["do_rescale"] = True
        processor["rescale_factor"] = 1 / 255
        processor["image_processor_type"] = "CLIPImageProcessor"
        del processor["feature_extractor_type"]
    write_json(directory / "preprocessor_config.json", processor)
    with formula.materialised(directory) as copy:
        model = CLIPModel.from_pretrained(copy).eval()
        tokens = [
            tokenizer(text, truncation=True, return_tensors="pt") for text in TEXTS
        ]
        pixels = CLIPImageProcessorPil.from_pretrained(copy)
        write_golden(directory, model, tokens, pixels)


def clip_tokenizer(special_first: bool) -> CLIPTokenizer:
    """Every byte, every byte at the end of a word, then the merges: the order of the published
    vocabulary."""
    parts = CLIPTokenizer().backend_tokenizer
    words: list[list[str]] = []
    for text in [*tiny.CORPUS, "a photo of a cat", "a photo of a dog"]:
        normal = parts.normalizer.normalize_str(text)
        for word, _ in parts.pre_tokenizer.pre_tokenize_str(normal):
            words.append([*word[:-1], word[-1] + "</w>"])
    merges = learn(words, 120)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|startoftext|>", "<|endoftext|>"]
    tokens = [
        *alphabet,
        *(letter + "</w>" for letter in alphabet),
        *(first + second for first, second in merges),
    ]
    tokens = [*special, *tokens] if special_first else [*tokens, *special]
    vocab = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    return CLIPTokenizer(vocab=vocab, merges=merges, model_max_length=MAX_TOKENS)


def learn(words: list[list[str]], count: int) -> list[tuple[str, str]]:
    """BPE merges by frequency. The library's trainer breaks ties by a hash, which changes from run
    to run."""
    merges = []
    for _ in range(count):
        pairs = Counter(pair for word in words for pair in pairwise(word))
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        for word in words:
            place = 0
            while place + 1 < len(word):
                if (word[place], word[place + 1]) == best:
                    word[place : place + 2] = ["".join(best)]
                place += 1
    return merges


def siglip(directory: Path, seed: int) -> None:
    empty_dir(directory)
    tokenizer = siglip_tokenizer()
    config = SiglipConfig(
        text_config=TOWER
        | {
            "vocab_size": len(tokenizer),
            "max_position_embeddings": MAX_TOKENS,
            "projection_size": tiny.HIDDEN,
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
        },
        vision_config=VISION,
    )
    SiglipModel(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    tokenizer_config = {
        "do_lower_case": True,
        "eos_token": "</s>",
        "model_input_names": ["input_ids"],
        "model_max_length": MAX_TOKENS,
        "pad_token": "</s>",
        "tokenizer_class": "SiglipTokenizer",
        "unk_token": "<unk>",
    }
    write_json(directory / "tokenizer_config.json", tokenizer_config)
    formula.replace_weights(directory, seed)
    processor = {
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_processor_type": "SiglipImageProcessor",
        "image_std": [0.5, 0.5, 0.5],
        "processor_class": "SiglipProcessor",
        "resample": 3,
        "rescale_factor": 0.00392156862745098,
        "size": {"height": 32, "width": 32},
    }
    write_json(directory / "preprocessor_config.json", processor)
    with formula.materialised(directory) as copy:
        model = SiglipModel.from_pretrained(copy).eval()
        tokens = []
        for text in TEXTS:
            # Padded to the full length and without a mask: the model was trained to attend to its
            # padding.
            features = tokenizer(
                text,
                padding="max_length",
                truncation=True,
                max_length=MAX_TOKENS,
                return_tensors="pt",
            )
            tokens.append({"input_ids": features["input_ids"]})
        pixels = SiglipImageProcessorPil.from_pretrained(copy)
        write_golden(directory, model, tokens, pixels)


def siglip_tokenizer() -> PreTrainedTokenizerFast:
    """As in SigLIP: lower case, punctuation removed, whitespace collapsed, then T5's pieces and one
    end token."""
    # The ids of the published vocabulary: <pad> is 0 but is not used for padding, </s> is 1, <unk>
    # is 2.
    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    tokenizer = Tokenizer(
        models.Unigram([*special, *tiny.unigram_pieces()], unk_id=2)
    )
    punctuation = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Lowercase(),
            normalizers.Replace(Regex(punctuation), ""),
            normalizers.Replace(Regex(r"\s+"), " "),
            normalizers.Strip(),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=["$A", "</s>"],
        pair=["$A", "</s>", "$B", "</s>"],
        special_tokens=[("</s>", 1)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="</s>",
        pad_token="</s>",
        unk_token="<unk>",
        model_max_length=MAX_TOKENS,
    )


@torch.inference_mode()
def write_golden(directory: Path, model, tokens: list, processor) -> None:
    folder = directory.parent / "task-images"
    paths = [
        path
        for path in sorted(folder.iterdir())
        if path.suffix in (".png", ".jpg")
    ]
    # One image and one text per call: the rest of a batch must not matter.
    pixels = [
        processor(read(path), return_tensors="pt")["pixel_values"]
        for path in paths
    ]
    rows = [
        [model(**features, pixel_values=image) for features in tokens]
        for image in pixels
    ]
    logits = torch.stack(
        [torch.cat([result.logits_per_image[0] for result in row]) for row in rows]
    )
    siglip = isinstance(model, SiglipModel)
    arrays = {
        "pixel_values": torch.cat(pixels),
        "image_embeds": torch.cat([row[0].image_embeds for row in rows]),
        "text_embeds": torch.cat([result.text_embeds for result in rows[0]]),
        "logits_per_image": logits,
        "probabilities": logits.sigmoid() if siglip else logits.softmax(dim=-1),
    }
    assert logits.std() > 0.3, logits.std()
    for name in ("alpha.png", "palette.png"):
        arrays[f"over_white.{name}"] = over_white(folder / name, processor)
    save_file(
        {name: array.contiguous().numpy() for name, array in arrays.items()},
        directory / "golden.safetensors",
    )
    sections = {
        "images": [path.name for path in paths],
        "texts": [
            {"text": text, "ids": features["input_ids"][0].tolist()}
            for text, features in zip(TEXTS, tokens, strict=True)
        ],
    }
    write_json_sections(directory / "golden.json", sections)
