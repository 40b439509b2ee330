"""LanceDB: the embedding function `sconce`."""

from functools import cached_property

from lancedb.embeddings import TextEmbeddingFunction, register

from ..sentence_transformer import SentenceTransformer


@register("sconce")
class SconceEmbeddingFunction(TextEmbeddingFunction):
    """Embeddings of a sentence-transformers model: `get_registry().get("sconce").create(name=…)`."""

    name: str = "minilm"
    device: str | None = None

    @cached_property
    def _encoder(self):
        return SentenceTransformer(self.name, device=self.device)

    def ndims(self):
        return self._encoder.get_embedding_dimension()

    def generate_embeddings(self, texts):
        return list(self._encoder.encode_document(list(texts)))

    def compute_query_embeddings(self, query, *args, **kwargs):
        return list(self._encoder.encode_query(self.sanitize_input(query)))
