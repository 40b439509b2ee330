"""`Clip`: image–text embeddings (CLIP, SigLIP)."""

import os
from pathlib import Path

import numpy

from . import _sconce
from .models import Model
from .texts import as_texts


class Clip(Model):
    """A model that embeds texts and images in one space."""

    _task = "clip"

    def encode_text(self, texts):
        """Embeddings of texts, L2-normalized: a matrix, or an array for a single text."""
        texts, is_single = as_texts(texts)
        embeddings = numpy.asarray(_sconce.clip_texts(self._model, texts))
        return embeddings[0] if is_single else embeddings

    def encode_image(self, images):
        """Embeddings of images, L2-normalized.

        An image is a path, the bytes of a file, a PIL image, or a numpy array `[height, width, 3]`
        of bytes.
        """
        is_single = not isinstance(images, (list, tuple))
        images = [_image(image) for image in ([images] if is_single else images)]
        embeddings = numpy.asarray(_sconce.clip_images(self._model, images))
        return embeddings[0] if is_single else embeddings

    def classify(self, images, texts):
        """Zero-shot classification: the score of each text (column) for each image (row)."""
        images, texts = numpy.atleast_2d(self.encode_image(images)), numpy.atleast_2d(self.encode_text(texts))
        scores = _sconce.clip_scores(self._model, images.tobytes(), texts.tobytes(), images.shape[1])
        return numpy.asarray(scores)

    def get_embedding_dimension(self):
        """The dimension of an embedding."""
        return self._info["dimension"]


def _image(image):
    if isinstance(image, (str, os.PathLike)):
        return None, Path(image).read_bytes()
    if isinstance(image, (bytes, bytearray, memoryview)):
        return None, bytes(image)
    if hasattr(image, "convert"):  # PIL
        image = image.convert("RGB")
        return image.size, image.tobytes()
    pixels = numpy.asarray(image)
    if pixels.dtype != numpy.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise TypeError(f"an image array must be uint8 [height, width, 3], not {pixels.dtype} {list(pixels.shape)}")
    return (pixels.shape[1], pixels.shape[0]), pixels.tobytes()
