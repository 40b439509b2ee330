"""mteb: `SconceEncoder` and `SconceCrossEncoder`, models for `mteb.evaluate`."""

import torch
from mteb.models import ModelMeta
from mteb.models.abs_encoder import AbsEncoder
from mteb.models.model_meta import ScoringFunction
from mteb.types import PromptType

from ..cross_encoder import CrossEncoder
from ..sentence_transformer import SentenceTransformer


def _meta(cls, model, revision, **more):
    known = {"name": str(model._name), "revision": revision, "loader": cls, "max_tokens": model.max_seq_length}
    return ModelMeta.create_empty(overwrites=known | more)


class SconceEncoder(AbsEncoder):
    """Dense embeddings. `model` is a name, or a `SentenceTransformer` of this package.

    `model_prompts` are prompts by task, task type or prompt type, as mteb names them; by default
    those of the model. Other options are those of `SentenceTransformer`.
    """

    def __init__(self, model, revision=None, device=None, model_prompts=None, **options):
        if not isinstance(model, SentenceTransformer):
            model = SentenceTransformer(model, revision=revision, device=device, **options)
        self.model = model
        prompts, _ = self.validate_task_to_prompt_name(model_prompts or model.prompts, raise_for_invalid_keys=False)
        self.model_prompts = prompts
        scoring = ScoringFunction(model.similarity_fn_name)
        dimension = model.get_embedding_dimension()
        self.mteb_model_meta = _meta(type(self), model, revision, embed_dim=dimension, similarity_fn_name=scoring)

    def encode(self, inputs, *, task_metadata, hf_split, hf_subset, prompt_type=None, **options):
        """The embeddings of all texts in the batches of a data loader."""
        texts = [text for batch in inputs for text in batch["text"]]
        name = self.get_prompt_name(task_metadata, prompt_type)
        prompt = self.model_prompts[name] if name is not None else None
        by_type = {PromptType.query: self.model.encode_query, PromptType.document: self.model.encode_document}
        return by_type.get(prompt_type, self.model.encode)(texts, prompt=prompt, **options)

    def similarity(self, embeddings1, embeddings2):
        """The similarity of every embedding with every other, a tensor."""
        return torch.as_tensor(self.model.similarity(embeddings1, embeddings2))

    def similarity_pairwise(self, embeddings1, embeddings2):
        """The similarity of embeddings at the same place, a tensor."""
        return torch.as_tensor(self.model.similarity_pairwise(embeddings1, embeddings2))


class SconceCrossEncoder:
    """Scores of pairs, for reranking. `model` is a name, or a `CrossEncoder` of this package."""

    def __init__(self, model, revision=None, device=None, **options):
        if not isinstance(model, CrossEncoder):
            model = CrossEncoder(model, revision=revision, device=device, **options)
        self.model = model
        self.mteb_model_meta = _meta(type(self), model, revision, model_type=["cross-encoder"])

    def predict(self, inputs1, inputs2, *, task_metadata, hf_split, hf_subset, prompt_type=None, **options):
        """The scores of the texts of two data loaders, pair by pair."""
        first, second = ([text for batch in inputs for text in batch["text"]] for inputs in (inputs1, inputs2))
        return self.model.predict(list(zip(first, second)), **options)
